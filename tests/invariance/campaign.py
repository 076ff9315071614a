"""Which configs an invariant choice may return, and whether the kernels of each leave the same bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from gemmgen.config import Config
from gemmgen.errors import UnsupportedProblem
from gemmgen.heuristics import choose
from gemmgen.heuristics.invariant import split_of
from gemmgen.heuristics.tuned import pick
from gemmgen.ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.problem import Problem
from gemmgen.recipes import recipe
from gemmgen.summation import summation
from gemmgen.target import H100, H200

from . import bits

PROBLEMS = (
    Problem(family="fp8_block", a=E4M3, b=E4M3),
    Problem(family="fp8_block", a=S8, b=S8),
    Problem(family="fp8_1d1d", a=E4M3, b=E4M3, d=F32),
    Problem(family="fp8", a=E4M3, b=E5M2),
    Problem(family="dense", a=E4M3, b=E4M3),
    Problem(family="dense", a=BF16, b=BF16),
    Problem(family="dense", a=F16, b=F16, d=F16, layout="nn"),
    Problem(family="w4a16", a=BF16, b=BF16, weights="int4_128_bf16"),
    Problem(family="w4a16", a=F16, b=F16, d=F16, weights="int4_32_f16_zeros"),
    Problem(family="w8a16", a=BF16, b=BF16, weights="int8_column_f32"),
    Problem(family="w4a8", a=E4M3, b=E4M3, weights="e2m1_32_e8m0"),
    Problem(family="w4a8_block", a=E4M3, b=E4M3, weights="int4_128_f32"),
)
SIDES = (
    (576, 7168),
    (1536, 7168),
    (2112, 7168),
    (4096, 7168),
    (7168, 2048),
    (3072, 3072),
    (64, 4096),
    (264, 1000),
)
GROUPED = tuple(name for name, g in GROUPINGS.items() if not (g.depths or g.summed))
COUNT = 6  # groups, where there are some
K = 640  # of the launches that are emulated: five K blocks of 128 bytes, shares of which differ, or are none


def choices(
    problems: Iterable[Problem], sides: Iterable[tuple[int, int]], rows: Iterable[int]
) -> Iterator[tuple[Problem, tuple[int, int, int], Config, int]]:
    """(problem, shape, config, CTAs that divide K) of every grouping, on two devices: those that `gemmgen.ops` takes."""
    rows = [*rows]
    for p in problems:
        for n, k in sides:
            split = split_of(p, n, k)
            for grouping in GROUPED:
                q = replace(p, grouping=grouping)
                assert split_of(q, n, k) == split
                for m in rows:
                    yield from _chosen(q, (m, n, k), split)


def _chosen(
    p: Problem, shape: tuple[int, int, int], split: int
) -> Iterator[tuple[Problem, tuple[int, int, int], Config, int]]:
    groups = 1 if p.grouping == "none" else COUNT
    for target in (H200, replace(H100, sms=78)):
        yield p, shape, pick(p, shape, target, groups, split_k=split).config, split
    try:
        yield p, shape, choose(p, shape, H200, groups, split_k=split), split
    except UnsupportedProblem as e:
        raise AssertionError(f"{p} at {shape}: nothing has split_k={split}") from e


def described_alike(p: Problem, shape: tuple[int, int, int], c: Config, split: int) -> bool:
    return summation(p, c, shape[2]) == summation(p, bits.plain(p, split), shape[2])


def same_bits(p: Problem, c: Config) -> bool:
    """Whether `c` leaves the bits of the plainest kernel that adds up so, of rows elsewhere in a launch of more."""
    alone, n = replace(p, grouping="none"), _wide(c)
    k = K if recipe(p.family).scaled else K + 8
    want = _plain(alone, n, k, max(c.split_k, c.shares))
    got = bits.bits(p, c, c.block_m + 9, n, k, first=3)
    return bool((got == want).all())


_KNOWN: dict[object, np.ndarray] = {}


def _plain(p: Problem, n: int, k: int, split: int) -> np.ndarray:
    key = p, n, k, split
    if key not in _KNOWN:
        _KNOWN[key] = bits.bits(p, bits.plain(p, split), bits.ROWS, n, k)
    return _KNOWN[key]


def _wide(c: Config) -> int:
    """A tile and a part of the next, of few sizes."""
    return -(-(c.block_n + 8) // 136) * 136
