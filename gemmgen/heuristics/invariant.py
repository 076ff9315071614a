"""How many CTAs divide K where bits must not depend on the batch (docs/adr/0041-batch-invariance.md)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import inf, log
from operator import itemgetter

from ..cost import priced
from ..cost_launch import launch
from ..ir.dtypes import BF16
from ..levers import split_k
from ..problem import Problem
from ..summation import is_exact, splits
from ..target import H200
from . import room, tiles
from .tiles import ANY

SPLITS = (1, *split_k.SPLITS)
# Rows of the launches that the choice is to serve alike: four of decoding, two of prefill.
ROWS = (1, 16, 64, 128, 512, 2048)
LEAST_GAIN = 0.005  # of the mean time, below which K stays whole


def split_of(p: Problem, n: int, k: int) -> int:
    """Of sums of `k` products in N columns, whatever M, the groups, the epilogue, the layout, the device and its limits;
    ANY where the order of adding does not matter. A function of the operands' dtypes, the family, N and K."""
    if is_exact(p):
        return ANY
    return (
        _split(Problem(family=p.family, a=p.a, b=p.b, d=BF16, weights=p.weights), n, k)
        if splits(p)
        else 1
    )


@lru_cache(maxsize=4096)
def _split(p: Problem, n: int, k: int) -> int:
    """The number whose times at ROWS have the least product, each the cheapest that the model knows: as few as take no
    more than LEAST_GAIN longer."""
    times = {split: [_seconds(p, (m, n, k), split) for m in ROWS] for split in SPLITS}
    means = {split: sum(map(log, s)) / len(s) for split, s in times.items() if inf not in s}
    least = min(means.values())
    return min(split for split, mean in means.items() if mean <= least + LEAST_GAIN)


def _seconds(p: Problem, shape: tuple[int, int, int], split: int) -> float:
    """Of the cheapest tile that has room."""
    of = replace(launch(p, shape, H200), split_k=split)
    costed = [(priced(of, c).seconds, c) for c in tiles.bare(of, shape[0])]
    costed.sort(key=itemgetter(0))
    return next((s for s, c in costed if not room.has_none(p, c, shape, H200)), inf)
