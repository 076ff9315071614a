"""Where D's tile takes the ring's place: stage it in pieces of its columns (docs/adr/0022-d-columns.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from ..config import Config
from ..ir.expr import fold
from ..ir.groupings import GROUPINGS
from ..problem import Problem
from ..recipes import recipe

# Bytes of D beside which 256 rows have three stages of FP8, below what hides latency.
LARGE_D = 1 << 16
WIDE = 128  # bytes of a piece's row: one slab of the widest swizzle, so that two waves have an even number
NARROWEST = WIDE // 2  # slabs of 32 bytes cost up to 23 % (docs/findings.md)


def in_pieces(problem: Problem, tile: Config) -> tuple[Config, ...]:
    """`tile`, or that with D in pieces if it is one of two waves of FP8 with column scales, which gains from its
    rows and has no room for D; none if only narrow boxes would make room."""
    d_bytes = problem.d.bytes
    if not _gains(problem) or tile.waves < 2 or tile.block_m * tile.block_n * d_bytes < LARGE_D:
        return (tile,)
    return tuple(c for c in divided(problem, tile) if (c.d_columns or 0) * d_bytes >= NARROWEST)


def divided(problem: Problem, tile: Config) -> Iterator[Config]:
    """`tile` with D in pieces of the widest slab that divides its columns, if D is one that may be cut (rule
    `column-stores`)."""
    if fold(problem.epilogue) > 1 or problem.quantised or GROUPINGS[problem.grouping].ragged:
        return
    yield replace(tile, d_columns=gcd(tile.block_n * problem.d.bytes, WIDE) // problem.d.bytes)


def _gains(p: Problem) -> bool:
    """Whether D is one that may be cut (rule `column-stores`) and where that was timed: in FP32."""
    plain = fold(p.epilogue) == 1 and not GROUPINGS[p.grouping].ragged
    return recipe(p.family).scales_columns and p.d.bytes == 4 and plain
