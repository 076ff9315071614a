"""`gemmgen report`: kernels and measurements as one page. Needs no GPU; what NVRTC says if it is installed."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict, replace

from ..config import Config
from ..errors import ArgumentError, RuntimeUnavailable
from ..ir.nodes import Kernel
from ..ops.refused import beside
from ..pipeline import Artifact, compile_to_source
from ..problem import Problem
from ..runtime.disassemble import mnemonics, sass
from ..runtime.launch import grid
from ..see import glance_page, html, kernel_page, text
from ..see.explain import explain
from ..see.layout_page import layout, views
from ..see.page import Block, Book, Facts, Page, Part, Table, count
from ..see.timeline_page import Selection
from ..see.timeline_page import page as timeline_page
from ..target import H200
from . import bench_page, compile_command, files, given, options
from .progress import counted
from .simulated import simulated

MAPS = {
    "A": "A in shared memory",
    "B": "B in shared memory",
    "acc": "The accumulator",
    "D": "D's tile",
    "scales": "Scales",
}
# What instructions of sm_90 do, by their names: regular expressions.
KINDS = (
    ("tensor cores", r"[A-Z]GMMA|WARPGROUP"),
    ("TMA", r"UTMA\w*|UBLKCP|UBLKRED"),
    ("barriers", r"SYNCS|(UCGA)?BAR\w*|DEPBAR|WARPSYNC|FENCE|MEMBAR|CCTL|(CGA)?ERRBAR"),
    ("shared memory", r"LDSM?|STSM?|ATOMS|STAS"),
    ("other memory", r"LD[GL]?|ST[GL]?|ATOMG?|RED[GAS]?|LDC|ULDC"),
    ("FP32 arithmetic", r"F(FMA|ADD|MUL|MNMX|SET|SETP|SEL|CHK)2?|MUFU"),
    ("conversion", r"[FI]2[FIP]+|PRMT"),
    ("branches", r"BRA|BRX|EXIT|CALL|RET|BSSY|BSYNC|BREAK|YIELD"),
    ("integers and the rest", r".*"),
)
MOST = 12  # instructions of a kind, the most frequent ones


def add(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser, many=True)
    options.add_shape(parser)
    parser.add_argument(
        "--bench",
        type=given.path,
        action="append",
        default=[],
        metavar="FILE",
        help="what `gemmgen bench --json` printed, repeatable",
    )
    parser.add_argument(
        "-o",
        type=given.path,
        metavar="FILE",
        help="write one HTML page (default: text, to the terminal)",
    )


def main(args: argparse.Namespace) -> int:
    if not (args.kernel or args.bench):
        raise ArgumentError("KERNEL", None, "is required without --bench")
    if not args.kernel:
        given.refuse(args, given.ALL, "is of KERNEL, and none is given")
    results = [bench_page.read(file) for file in args.bench]
    parts = [_part(args, name) for name in counted("describing", args.kernel)]
    parts += [bench_page.part(r) for r in results]
    book = Book(title=_title(args), parts=tuple(parts))
    if args.o:
        files.write(args.o.parent, args.o.name, html.book(book).encode())
    if args.json:
        written = {"files": [str(args.o)]} if args.o else {}
        print(json.dumps(written or asdict(book), indent=2))
    else:
        print(args.o if args.o else text.book(book), end="\n" if args.o else "")
    return 0


def _title(args: argparse.Namespace) -> str:
    shape = "M={} N={} K={}".format(*options.shape(args))
    return f"gemmgen: {', '.join(args.kernel)}, {shape}" if args.kernel else "gemmgen: measurements"


def _part(args: argparse.Namespace, name: str) -> Part:
    """All that is known of one kernel without a GPU."""
    named, shape = argparse.Namespace(**{**vars(args), "kernel": name}), options.shape(args)
    problem, config, source = options.choice(named, shape)
    a = compile_to_source(problem, config)
    ctas, unbuilt = grid(a.kernel, shape, H200.sms), beside(problem, config)
    why = explain(problem, config, shape, source, ctas=ctas, unbuilt=unbuilt)
    pages = (
        Page(title="At a glance", blocks=glance_page.blocks(why)),
        kernel_page.what_it_is(a),
        kernel_page.proof(a.proof),
        resources(a),
        *_timeline(problem, config, a.kernel, shape),
        *_maps(a.kernel),
    )
    return Part(name=name, pages=pages)


def _timeline(p: Problem, c: Config, kernel: Kernel, shape: options.Shape) -> list[Page]:
    """None of a kernel without a ring, whose times are not simulated."""
    if not kernel.ring:
        return []
    timeline, launch = simulated(p, c, kernel, shape, H200.sms)
    page = timeline_page(timeline, Selection(), launch)
    return [replace(page, title="Timeline, simulated")]


def _maps(kernel: Kernel) -> list[Page]:
    """The pages of `gemmgen layout` that this kernel has."""
    return [replace(layout(kernel, what), title=MAPS[what]) for what in views(kernel)]


def resources(a: Artifact) -> Page:
    """What ptxas made of it; on a machine without NVRTC or nvdisasm, what is missing."""
    blocks: list[Block] = []
    try:
        cubin = compile_command.cubin_of(a)
        row = compile_command.describe(a.name, a, cubin, "")
        blocks.append(_used(row))
        blocks.append(instructions(sass(cubin.image)))
    except RuntimeUnavailable as e:
        blocks.append(Facts(title="Not known here", items=(("missing", str(e)),)))
    return Page(title="Resources", blocks=tuple(blocks))


def _used(row: dict[str, object]) -> Facts:
    names = {
        "threads": "threads of a CTA",
        "registers": "registers per thread at launch",
        "spill_bytes": "bytes spilt",
        "stack_bytes": "bytes of stack",
        "smem_bytes": "bytes of shared memory",
        "cubin_bytes": "bytes of cubin",
    }
    items = tuple((says, count(float(str(row[name])))) for name, says in names.items())
    return Facts(title="What ptxas says", items=items)


def instructions(code: str) -> Table:
    """By what they do, the first kind of KINDS that an instruction is of."""
    found = mnemonics(code)
    of = {name: next(kind for kind, names in KINDS if re.fullmatch(names, name)) for name in found}
    rows = []
    for kind, _ in KINDS:
        mine = sorted((name for name in found if of[name] == kind), key=lambda n: (-found[n], n))
        shown = [f"{name} {count(found[name])}" for name in mine[:MOST]]
        more = [f"{len(mine) - MOST} others"] * (len(mine) > MOST)
        rows.append((kind, count(sum(found[n] for n in mine)), ", ".join(shown + more)))
    return Table(
        title="SASS instructions",
        columns=("of", "in the code", "which"),
        rows=tuple(row for row in rows if row[1] != "0"),
        note="As often as they stand in the code, however often they run.",
    )
