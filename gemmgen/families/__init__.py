"""One file per family: `build(problem, config) -> Kernel`. Which operands it takes, and what its sums are, is in `recipes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..config import Config
from ..errors import ArgumentError
from ..ir.groupings import GROUPINGS
from ..ir.nodes import Kernel
from ..ir.text import expression
from ..problem import Problem
from ..recipes import RECIPES, Recipe
from . import dense, fp8, fp8_1d1d, fp8_block, w4a8, w4a8_block, w4a16, w8a16


@dataclass(frozen=True)
class Family:
    build: Callable[[Problem, Config], Kernel]
    says: str


def add(name: str, family: Family, recipe: Recipe) -> None:
    """Make a family known to every layer of this process. Raises ArgumentError for a name that is taken."""
    if name in FAMILIES:
        raise ArgumentError("name", name, "must be none of " + ", ".join(FAMILIES))
    FAMILIES[name], RECIPES[name] = family, recipe


FAMILIES = {
    "fp8_block": Family(fp8_block.build, "FP8 or INT8, A scaled 1x128, B scaled 128x128"),
    "fp8_1d1d": Family(fp8_1d1d.build, "FP8, A and B scaled 1x128 along K"),
    "fp8": Family(fp8.build, "FP8, promoted to FP32 every 128 of K"),
    "dense": Family(
        dense.build,
        "BF16, FP16 or INT8; FP8 with the tensor core's own sum (fast accumulation)",
    ),
    "w4a16": Family(w4a16.build, "BF16 or FP16, B of 4 bits with a scale for each group along K"),
    "w4a8": Family(
        w4a8.build,
        "FP8, B of 4 bits with an exponent for each 32 along K, less its row's; with the tensor core's own sum",
    ),
    "w4a8_block": Family(
        w4a8_block.build,
        "FP8 scaled 1x128 along K, B of 4 bits scaled so too, or with an exponent for each 32 along K, less its row's; promoted to FP32 every 128 of K",
    ),
    "w8a16": Family(
        w8a16.build, "BF16 or FP16, B of 8 bits, INT8 or FP8, whose rows' scales are the epilogue's"
    ),
}


def build(p: Problem, c: Config) -> Kernel:
    """The family's kernel IR, before any pass."""
    return FAMILIES[p.family].build(p, c)


def computes(p: Problem) -> str:
    """What a kernel for `p` computes, in words."""
    a, b = p.stored
    which = " (rows that an array on the device says)" * p.indexed
    pages = f" (in pages of {p.paged} rows, which an array on the device says)" * bool(p.paged)
    squares = ", in the last column (of a pair the first) and of A's row squared" * p.squares
    product = f"where acc is the sum over K of A {a} {p.a}{which} times B {b} {p.b}{pages}{squares}"
    gaps = (
        f" (heads of {p.heads.left} and {p.heads.right} columns, {p.heads.mid} left out between them)"
        if p.heads
        else " (its last column apart)" * p.squares
        + " (each row from its window's first column on)" * p.compact
    )
    each = f"Computes D [M, N] {p.d}{gaps}, of elements {expression(p.value)}, {product}"
    return f"{each}. {p.family}: {FAMILIES[p.family].says}; {GROUPINGS[p.grouping].says}."
