"""Kernel -> CUDA source. Knows templates, knows nothing about families or passes."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket

from .errors import IRError
from .ir import orders
from .ir.nodes import (
    Arrive,
    ArriveCluster,
    Coord,
    InitBarrier,
    Kernel,
    Mma,
    Role,
    StageTile,
    Stmt,
    StoreTail,
    StoreWait,
    Wait,
    WaitForTurn,
    WaitTurn,
)
from .ir.places import end, first, held, piece, shift
from .ir.promotion import LANES
from .ir.reasons import REASONS
from .ir.rewrite import unstamped
from .ir.spelling import epilogue_value, folded, of_group
from .ir.stores import E4M3_MAX, LEAST_AMAX, slot
from .ir.text import dump, smem_map

# The templates with a macro per statement.
STATEMENTS = (
    *("stmts.j2", "stmts_promotion.j2", "stmts_output.j2", "stmts_values.j2"),
    *("stmts_maps.j2", "stmts_transposed.j2", "stmts_exchange.j2"),
    *("stmts_stamps.j2", "stmts_turns.j2"),
)
# Memory and synchronisation; what works on registers; conversions, the same for every kernel.
VALUES = ("ptx_values.j2",)
PTX = ("ptx.j2", "ptx_registers.j2", *VALUES)

RANKS = {2: "", 3: "_3d"}  # what a PTX function's name ends in, by its number of coordinates

VERBS, ASSIGNS = {False: "store", True: "add"}, {False: "=", True: "+="}

# Of 128 of K, a lane's. A group without any, after all others, has none of its own to read.
K_BLOCKS = {
    "first": "min(lane, tile.k_blocks - 1)",
    "next": f"min(chunk + {LANES} + lane, tile.k_blocks - 1)",
    "first of group": "min(tile.k_first / 128 + lane, (shape_k - 1) / 128)",
    "next of group": f"min(tile.k_first / 128 + chunk + {LANES} + lane, (shape_k - 1) / 128)",
}

# The K blocks of a ForK.
SPANS = {
    "tile": {"first": "0", "end": "tile.k_blocks"},
    "chunk": {"first": "chunk", "end": "chunk_end"},
}

# What a warpgroup is called by its number in the CTA: where each has a tile of its own, it shares it with none.
INDEX = {False: "warpgroup", True: "worker"}
ALONE = "constexpr int warpgroup = 0;  // of those that share a tile: each worker has its own"

# How shared memory's address is had.
ADDRESS = {False: "shared_address", True: "kept_shared_address"}

# A stamp's tile and K block, by where it stands; -1 outside of them.
NUMBERS = {"role": "-1, -1", "tile": "stamps.tile, -1", "block": "stamps.tile, k"}


def emit(kernel: Kernel, header: tuple[str, ...] = ()) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC.

    `kernel` must have been lowered; `header` lines go into the provenance comment.
    Same kernel and header, same bytes.
    """
    env = environment()
    macros: dict[str, Any] = {}

    def body(stmts: tuple[Stmt, ...]) -> str:
        return "\n".join(macros[macro_name(type(s))](s).rstrip("\n") for s in stmts)

    env.globals |= _names(kernel) | {"body": body}
    for name in STATEMENTS:
        macros |= vars(env.get_template(name).module)
    parts = {
        "prologue": body(kernel.prologue),
        "roles": [_role(env, kernel, r, body(r.body)) for r in kernel.roles],
        "shared": [s for s in kernel.smem if s.copies == 1],
        "alone": [ALONE] * (kernel.consumer.turns > 1),
        "address": ADDRESS[kernel.keeps_address],
        "signature": signature(kernel),
        "registers": ", ".join(f"{r.name} {r.registers}" for r in kernel.roles),
        "smem_map": smem_map(kernel),
        "header": (*header, *_digests(kernel)),
    }
    frame = env.get_template("kernel.cu.j2")
    called = frame.render(parts, ptx="")
    return without_trailing_spaces(frame.render(parts, ptx=ptx_functions(env, called)))


def without_trailing_spaces(text: str) -> str:
    return re.sub(r"[ \t]+\n", "\n", text)


def _names(kernel: Kernel) -> dict[str, Any]:
    """What templates may name: the kernel's tables, and how the parts of a statement are spelled."""
    return {
        "kernel": kernel,
        "instr": kernel.instr,
        "maps": {m.name: m for m in kernel.maps},
        "smem": {s.name: s for s in kernel.smem},
        "registers": {r.name: r for role in kernel.roles for r in role.locals},
        "coord": coordinate,
        "coords": lambda coords: ", ".join(map(coordinate, coords)),
        "more": lambda coords: "".join(f", {coordinate(c)}" for c in coords[2:]),
        "rank": lambda s: RANKS[len(s.coords)],
        **{f.__name__: f for f in (phase, parity, turn_parity, stage, scale_d)},
        **{f.__name__: f for f in (wait_kind, plus, slot)},
        "first": lambda s: first(kernel, s),
        "held": lambda s: held(kernel, s),
        "of_group": lambda tensor: of_group(kernel, tensor),
        "e4m3_max": E4M3_MAX,
        "least_amax": LEAST_AMAX,
        "d_columns": folded(kernel, "shape_n"),
        "d_col": folded(kernel, "col"),
        "piece": lambda s: piece(kernel, s),
        "shift": lambda s: shift(kernel, s),
        "end": lambda s: end(kernel, s),
        "end_of_rows": "tile.d_end" if kernel.groups.ragged else "shape_m",
        "map_at": lambda name: map_at(kernel, name),
        "stages": lambda s: stages(kernel, s),
        "cluster_k": f", CLUSTER_K = {kernel.cluster.k}" * (kernel.cluster.k > 1),
        "ctas": "CLUSTER_M * CLUSTER_N" + " * CLUSTER_K" * (kernel.cluster.k > 1),
        "low": lambda bits: bits & 0xFFFFFFFF,
        "high": lambda bits: hex(bits >> 32),
        "chunk_mask": lambda s: _chunk_mask(kernel, s),
        "epilogue_value": lambda s: epilogue_value(kernel, s),
        "verb": lambda s: VERBS[s.add],
        "assign": lambda s: ASSIGNS[s.add],
        "k_block": lambda s: K_BLOCKS[s.block],
        "span": lambda s: SPANS[s.of],
        "numbers": lambda s: NUMBERS[s.place],
        "reason": REASONS,
        "order": orders.comment(kernel.scheduler),
        "placed": lambda index: orders.device(kernel.scheduler, index),
        "index": INDEX[kernel.consumer.turns > 1],
        "turns": kernel.consumer.turns,
    }


class CompiledTemplates(BytecodeCache):
    """Templates compiled once per process. Every kernel has an environment of its own, for its globals, and
    compiling the templates for each would be nearly all of emit's time."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._code:
            bucket.bytecode_from_string(self._code[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key] = bucket.bytecode_to_string()


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
    here = Path(__file__).parent
    return next(p for p in (here / "templates", here.parent / "templates") if p.is_dir())


def macro_name(stmt: type[Stmt]) -> str:
    """TmaLoad -> tma_load."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", stmt.__name__).lower()


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


def coordinate(c: Coord) -> str:
    text = c.base if c.scale == 1 else f"{c.base} * {c.scale}"
    text = f"{c.start} + {text}" if c.start else text
    text += f" + {c.offset}" if c.offset else ""
    return text + (f" + cta_rank * {c.rank_step}" if c.rank_step else "")


def plus(number: int) -> str:
    """What adds `number`: nothing for 0."""
    return f" + {number}" if number else ""


def phase(s: Wait) -> str:
    return ("ring.phase", "ring.phase ^ 1")[s.flip]


def parity(s: WaitTurn) -> str:
    return f"{s.turn}[0]" + ("", " ^ 1")[s.flip]


def turn_parity(s: WaitForTurn) -> str:
    """The first worker's first turn is there; afterwards it waits for what the last passed before."""
    return f"{s.turn}[0] ^ ({INDEX[True]} == 0)"


def stages(kernel: Kernel, s: InitBarrier) -> str:
    """How many mbarriers `s` initialises."""
    (barrier,) = (b for b in kernel.barriers if b.name == s.barrier)
    return {"stage": "STAGES", "tile": "1", "turn": f"{barrier.stages}"}[barrier.per]


def stage(s: Arrive | ArriveCluster) -> str:
    return ("ring.stage", "ring.previous()")[s.lag]


def scale_d(s: Mma, step: int) -> str:
    """The scale-d operand of step `step`: 0 overwrites the accumulator."""
    first = {"block": "0", "tile": "k != 0", "never": "1"}[s.fresh]
    return "1" if step else first


def map_at(kernel: Kernel, name: str) -> str:
    """The address of a tensor map: a kernel parameter, or this CTA's own for the tile's group."""
    derived = [m.name for m in kernel.maps if m.derived]
    if name not in derived:
        return f"&{name}"
    return f"group_maps + tile.slot * {len(derived)} + {derived.index(name)}"


def wait_kind(s: StoreWait) -> str:
    return "read" if s.reads else "all"


def _chunk_mask(kernel: Kernel, s: StageTile | StoreTail) -> int:
    """Which address bits a buffer's swizzle mixes: its span in 16-byte chunks, less one."""
    swizzle = kernel.buffer(s.smem).swizzle or 0
    return swizzle // 16 - 1 if swizzle else 0


def _role(env: Environment, kernel: Kernel, role: Role, body: str) -> str:
    own = [s for s in kernel.smem if s.copies == role.turns > 1]
    return env.get_template("role.j2").render(role=role, own=own, body=body).rstrip("\n")


def ptx_functions(env: Environment, text: str, layer: tuple[str, ...] = PTX) -> str:
    """The functions of the PTX layer's templates that `text` calls, in the layer's order."""
    names = set(re.findall(r"ptx::(\w+)", text))
    chunks = "\n\n".join(env.get_template(x).render().strip("\n") for x in layer).split("\n\n")
    return "\n\n".join(c for c in chunks if _defined(c) in names)


def _defined(chunk: str) -> str:
    found = re.search(r"__device__ __forceinline__ [\w ]+?\*? (\w+)\(", chunk)
    if not found:
        raise IRError(f"the PTX layer has a chunk that defines no function: {chunk[:60]!r}")
    return found[1]
