"""Whether a layer's first GEMM reads tokens where they are, by index, or copies of them: by what the cost model says of either."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..cost import cost
from ..problem import Problem, Shape
from ..recipes import SCALE_BLOCK, recipe
from . import building
from .grouped import dense_problem, fp8_block_problem

if TYPE_CHECKING:
    from .mixture import Experts

# Of HBM's peak, what `ops.spread` reads and writes in a second, of codes and of scales, which neighbours do not write side by side; and seconds of
# a launch. Of 36736 to 147328 rows on an H100 within 12 % and 28 %, of fewer within 3 us.
CODES, SCALES, LAUNCH = 0.69, 0.1, 2e-6
# Rows of an expert in the mean. Of more the model tells gains from losses no longer: 0.89 to 1.20 were measured, up to here 0.95 to 0.99.
MOST_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Of the first GEMM: product, of rows that lie in order, and its shape, M the mean of an expert's rows; experts; tokens, and copies of each."""

    product: Problem
    shape: Shape
    experts: int
    tokens: int
    top: int


def layer(w: Experts, chosen: Any, rows: int, groups: int) -> Layer:
    """What is weighed, of so many experts with so many rows in the mean: of halves as if their rows alternated."""
    if w.scaled:
        product = fp8_block_problem("ends", "e4m3", w.epilogue)
    else:
        product = dense_problem(w.w1, "ends", Problem.layout, None, w.epilogue)
    (tokens, top), (_, wide, hidden) = chosen.shape, w.w1.shape
    return Layer(
        product=product, shape=(rows, wide, hidden), experts=groups, tokens=tokens, top=top
    )


@lru_cache(maxsize=1024)
def pays(of: Layer, device: int) -> bool:
    """Whether rows by index, with copies of scales alone, are taken to be faster on CUDA device `device`. Kept for next time."""
    if of.shape[0] > MOST_ROWS:
        return False
    _, target = building.priced_for(device)

    def seconds(p: Problem) -> float:
        chosen = building.chosen(p, of.shape, of.experts, device)
        return cost(p, chosen, of.shape, target, of.experts).seconds

    by_index = seconds(replace(of.product, indexed=True)) + _scales(of, target.hbm_bytes_per_second)
    return by_index < seconds(of.product) + _copies(of, target.hbm_bytes_per_second)


def _scales(of: Layer, peak: float) -> float:
    """Of copies of scales alone: none where there are none."""
    if not recipe(of.product.family).scaled:
        return 0.0
    blocks = -(-of.shape[2] // SCALE_BLOCK)
    return LAUNCH + 4 * blocks * of.tokens * (1 + of.top) / (SCALES * peak)


def _copies(of: Layer, peak: float) -> float:
    """Of all copies, in one launch."""
    k_bytes = of.shape[2] * of.product.a.bytes
    return LAUNCH + k_bytes * of.tokens * (1 + of.top) / (CODES * peak)
