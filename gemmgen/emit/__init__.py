"""Kernel -> CUDA source. Knows templates, knows nothing about families or passes."""

from __future__ import annotations

import hashlib
import re
import textwrap
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket

from ..errors import IRError
from ..ir.nodes import Kernel, Role, Stmt
from ..ir.rewrite import unstamped
from ..ir.text import dump
from .descriptors import descriptor_words
from .names import ADDRESS, ALONE, shared, vocabulary
from .repeats import Repeat, repeats, with_stems

# The templates with a macro per statement.
STATEMENTS = (
    *("stmts_loops.j2", "stmts.j2", "stmts_promotion.j2", "stmts_straddling.j2", "stmts_output.j2"),
    *("stmts_values.j2", "stmts_maps.j2", "stmts_transposed.j2", "stmts_sums.j2"),
    *("stmts_exchange.j2", "stmts_stamps.j2", "stmts_turns.j2", "stmts_ahead.j2"),
    *("stmts_ranks.j2", "stmts_parcels.j2", "stmts_arrivals.j2", "stmts_fragments.j2"),
    *("stmts_slots.j2", "stmts_epoch.j2", "stmts_every_rank.j2", "stmts_shares.j2"),
    *("stmts_indices.j2", "stmts_pages.j2", "stmts_decoding.j2", "stmts_codes.j2"),
    *("stmts_decode.j2", "stmts_decode_bytes.j2", "stmts_octets.j2", "stmts_slices.j2"),
    *("stmts_squares.j2", "stmts_windows.j2"),
)
# Memory and synchronisation; what works on registers; conversions and what CTAs write to each other, the same for every kernel.
MEMORY, VALUES, CLUSTER = "ptx.j2", ("ptx_values.j2",), ("ptx_cluster.j2",)
PAIRS = ("ptx_pairs.j2",)  # arithmetic of two numbers in a register
PTX = (
    *(MEMORY, "ptx_registers.j2", "ptx_fragments.j2", "ptx_copies.j2", "ptx_wire.j2"),
    *(*VALUES, *CLUSTER, *PAIRS),
)
RINGS = {False: "ring.j2", True: "sliced_ring.j2"}
COMMENT = 116  # characters of a line
LINES_SAVED = 6  # by a function, at least


def emit(kernel: Kernel, header: tuple[str, ...] = ()) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC.

    `kernel` must have been lowered; `header` lines go into the provenance comment.
    Same kernel and header, same bytes.
    """
    env = environment()
    macros: dict[str, Any] = {}

    def one(s: Stmt) -> str:
        return str(macros[macro_name(s)](s)).rstrip("\n")

    def body(stmts: tuple[Stmt, ...]) -> str:
        return "\n".join(
            written(x) if isinstance(x, Repeat) else one(x) for x in repeats(kernel, stmts)
        )

    def written(r: Repeat) -> str:
        """A function and its calls; the statements themselves where those are hardly longer."""
        inside = "\n".join(map(one, r.body))
        if len(r.body) > 1 or not inside.startswith("{"):
            inside = "{\n" + textwrap.indent(inside, "    ") + "\n}"
        calls = (f"{r.name}({', '.join(map(str, c))});" for c in r.calls)
        text = "\n".join((f"const auto {r.name} = [&]({r.signature}) {inside};", *calls))
        plain = "\n".join(map(one, r.groups))
        return text if text.count("\n") + LINES_SAVED <= plain.count("\n") else plain

    env.globals |= vocabulary(with_stems(kernel)) | {"body": body}
    for name in STATEMENTS:
        macros |= vars(env.get_template(name).module)
    size = kernel.cluster.size
    parts = {
        "prologue": body(kernel.prologue),
        "roles": [_role(env, kernel, r, body(r.body)) for r in kernel.roles],
        "shared": [s for s in kernel.smem if s.copies == 1],
        "alone": [ALONE[x] for x in ALONE if getattr(kernel.consumer, x) > 1],
        "address": ADDRESS[kernel.keeps_address],
        # CTAs that are no cluster are launched as none (docs/adr/0083-no-clusters-of-one.md).
        "clusters": f" __cluster_dims__({size}, 1, 1)" * (size > 1),
        "signature": signature(kernel),
        "registers": ", ".join(f"{r.name} {r.registers}" for r in kernel.roles),
        "ring": ["ring"] * kernel.ring,
        "ring_of": RINGS[kernel.consumer.slices > 1],
        "contents": "\n".join(f"// {x}" for x in contents(kernel)),
        "layout": shared(kernel),
        "words": descriptor_words(kernel),
        "header": [x for line in (*header, *_digests(kernel)) for x in wrapped(line)],
    }
    frame = env.get_template("kernel.cu.j2")
    called = ptx_functions(env, frame.render(parts, ptx="", declared=""))
    declared = "\n".join(declaration(c) for c in called.split("\n\n"))
    return without_trailing_spaces(frame.render(parts, ptx=called, declared=declared))


def plain(template: str, layer: tuple[str, ...] = VALUES, **given: Any) -> str:
    """Source of a kernel that is no `Kernel`, of a template that `given` and `ptx`, the functions of `layer` that it calls, fill."""
    env = environment()
    frame = env.get_template(template)
    functions = ptx_functions(env, frame.render(given, ptx=""), layer)
    return without_trailing_spaces(frame.render(given, ptx=functions))


def contents(kernel: Kernel) -> list[str]:
    """What is in the file, in lines of a comment."""
    through = " Ring, the stages that they are loaded through;" * kernel.ring
    line = (
        "In this file: Shared, what lies where in shared memory; Tile and Scheduler, which tiles a CTA computes;"
        f"{through} the kernel: setup, then each role ({', '.join(r.name for r in kernel.roles)}); ptx, the instructions."
    )
    return textwrap.wrap(line, COMMENT)


def wrapped(line: str) -> list[str]:
    """In lines of a comment."""
    return textwrap.wrap(line, COMMENT, subsequent_indent="    ", break_long_words=False) or [""]


def without_trailing_spaces(text: str) -> str:
    return re.sub(r"[ \t]+\n", "\n", text)


class CompiledTemplates(BytecodeCache):
    """Templates compiled once per process. Every kernel has an environment of its own, for its globals, and
    compiling the templates for each would be nearly all of emit's time."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key, bucket.checksum] = bucket.code


COMPILED = CompiledTemplates()


def environment() -> Environment:
    """Jinja2 with delimiters that leave PTX's and C++'s braces alone: ${x} and //% lines."""
    return Environment(
        loader=FileSystemLoader(templates()),
        bytecode_cache=COMPILED,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        variable_start_string="${",
        variable_end_string="}",
        line_statement_prefix="//%",
        line_comment_prefix="//#",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
    )


@cache
def templates() -> Path:
    """Where the templates are: inside an installed package, beside `gemmgen/` in a checkout."""
    here = Path(__file__).parents[1]
    return next(p for p in (here / "templates", here.parent / "templates") if p.is_dir())


def macro_name(stmt: Stmt) -> str:
    """TmaLoad -> tma_load, StageTile by matrix -> stage_tile_matrix."""
    by = f"_{getattr(stmt, stmt.spelled_by)}" if stmt.spelled_by else ""
    return snake(type(stmt).__name__) + by


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def digest(kernel: Kernel) -> str:
    """Identifies the lowered IR: 16 hex digits of the SHA-256 of its text form."""
    return hashlib.sha256(dump(kernel).encode()).hexdigest()[:16]


def _digests(kernel: Kernel) -> tuple[str, ...]:
    """Of the kernel, and if it is stamped first of what it is without stamps."""
    plain = f"IR sha256 {digest(unstamped(kernel))}"
    return (plain, *[f"IR sha256 with stamps {digest(kernel)}"] * bool(kernel.stamps))


def signature(kernel: Kernel) -> list[str]:
    """The kernel's parameters in order: tensor maps, then scalars and pointers."""
    maps = [f"const __grid_constant__ TensorMap {m.name}" for m in kernel.maps]
    return maps + [str(p) for p in kernel.params]


def _role(env: Environment, kernel: Kernel, role: Role, body: str) -> str:
    own = [s for s in kernel.smem if s.copies == role.turns > 1]
    return env.get_template("role.j2").render(role=role, own=own, body=body).rstrip("\n")


def ptx_functions(env: Environment, text: str, layer: tuple[str, ...] = PTX) -> str:
    """The functions of the PTX layer's templates that `text` calls, in the layer's order."""
    names = set(re.findall(r"ptx::(\w+)", text))
    chunks = "\n\n".join(env.get_template(x).render().strip("\n") for x in layer).split("\n\n")
    return "\n\n".join(c for c in chunks if _defined(c) in names)


def declaration(chunk: str) -> str:
    """Of a function that `chunk` defines, on one line."""
    head = chunk[chunk.index("template") if "template" in chunk else chunk.index("__device__") :]
    return " ".join(head[: head.index(") {") + 1].split()) + ";"


def _defined(chunk: str) -> str:
    found = re.search(r"__device__ __forceinline__ [\w ]+?\*? (\w+)\(", chunk)
    if not found:
        raise IRError(f"the PTX layer has a chunk that defines no function: {chunk[:60]!r}")
    return found[1]
