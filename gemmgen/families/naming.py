"""What kernels are called."""

from __future__ import annotations

from ..config import Config
from ..epilogues import label_of
from ..levers import LEVERS
from ..problem import Problem


def kernel_name(p: Problem, c: Config) -> str:
    """A C identifier that names everything the emitted code depends on."""
    tile = f"{c.block_m}x{c.block_n}x{c.block_k_bytes // p.a.bytes}"
    grouped = "" if p.grouping == "none" else f"_{p.grouping}"
    parts = [
        f"gemmgen_{p.family}{grouped}_gemm",
        p.a.name,
        p.b.name,
        p.d.name,
        tile,
        f"s{c.stages}c{c.consumers}",
    ]
    early = [x.tagged(c) for x in LEVERS if not (x.added or x.late)]
    of_problem = [
        f"al{p.alignment}" * (p.alignment != Problem.alignment),
        "add" * p.accumulate,
        "indexed" * p.indexed,
        f"paged_{p.paged}".removesuffix("_64") if p.paged else "",
        "squares" * p.squares,
        "_".join(map(str, ("heads", *p.heads.numbers))) if p.heads else "",
        "compact" * p.compact,
        p.collective * (p.collective != Problem.collective),
        f"wire_{p.wire}" * (p.wire is not None),
    ]
    late = [x.tagged(c) for x in LEVERS if x.added or x.late]
    label = label_of(p.epilogue) if p.epilogue != Problem.epilogue else ""
    layout = p.layout * (p.layout != Problem.layout)
    return "_".join(x for x in (*parts, layout, *early, *of_problem, *late, label) if x)
