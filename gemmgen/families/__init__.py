"""One file per family: `build(problem, config) -> Kernel`, which operand dtypes it takes, and what its sums are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..config import Config
from ..errors import ArgumentError, UnsupportedProblem
from ..ir.dtypes import BF16, E4M3, F16, FP8, S8, DType
from ..ir.groupings import GROUPINGS
from ..ir.nodes import Kernel
from ..ir.text import expression
from ..problem import Problem
from ..recipes import RECIPES, Recipe
from . import dense, fp8, fp8_1d1d, fp8_block


@dataclass(frozen=True)
class Family:
    build: Callable[[Problem, Config], Kernel]
    operands: tuple[tuple[DType, DType], ...]  # the (a, b) it takes; the first is the default
    says: str


def add(name: str, family: Family, recipe: Recipe) -> None:
    """Make a family known to every layer of this process. Raises ArgumentError for a name that is taken."""
    if name in FAMILIES:
        raise ArgumentError("name", name, "must be none of " + ", ".join(FAMILIES))
    FAMILIES[name], RECIPES[name] = family, recipe


FP8_PAIRS = tuple((a, b) for a in FP8 for b in FP8)

FAMILIES = {
    "fp8_block": Family(
        fp8_block.build,
        ((E4M3, E4M3), (S8, S8)),
        "FP8 or INT8, A scaled 1x128, B scaled 128x128",
    ),
    "fp8_1d1d": Family(fp8_1d1d.build, ((E4M3, E4M3),), "FP8, A and B scaled 1x128 along K"),
    "fp8": Family(fp8.build, FP8_PAIRS, "FP8, promoted to FP32 every 128 of K"),
    "dense": Family(
        dense.build,
        ((BF16, BF16), (F16, F16), *FP8_PAIRS, (S8, S8)),
        "BF16, FP16 or INT8; FP8 with the tensor core's own sum (fast accumulation)",
    ),
}


def build(p: Problem, c: Config) -> Kernel:
    """The family's kernel IR, before any pass. Raises UnsupportedProblem if no family computes `p`."""
    if p.family not in FAMILIES:
        raise UnsupportedProblem(f"family={p.family!r}: must be one of {', '.join(FAMILIES)}")
    family = FAMILIES[p.family]
    if (p.a, p.b) not in family.operands:
        pairs = "; ".join(f"{a} x {b}" for a, b in family.operands)
        raise UnsupportedProblem(f"{p.family} does not multiply {p.a} x {p.b}; it takes {pairs}")
    return family.build(p, c)


def computes(p: Problem) -> str:
    """What a kernel for `p` computes, in words."""
    a, b = p.stored
    product = f"where acc is the sum over K of A {a} {p.a} times B {b} {p.b}"
    each = f"Computes D [M, N] {p.d}, of elements {expression(p.value)}, {product}"
    return f"{each}. {p.family}: {FAMILIES[p.family].says}; {GROUPINGS[p.grouping].says}."
