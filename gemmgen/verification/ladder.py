"""Operands whose every product shows: a sum that lacks one of them, or a run of them, is not the sum.

Along K an element's sum climbs from 0 and comes back to 1, 2 or 3. On the way up each product is positive.
Half of K further on the same products come again, now negative, and the last few descend to the end by
known steps. So a run of K that is missing takes something away: less is left of a slope, or the small end
moves by 1 at least, which BF16, E4M3 and an epilogue that grows near 1 all tell apart.

- A's and B's elements are 1 and 2 at random, so that each row, column and K block has numbers of its own.
- The way up ends at a multiple of 128 of K, so that no K block, and no wgmma step, has both slopes.
- The last 1 to 256 of K climb by 2, then descend by 1 and by 2s: even sums, then odd ones, no two equal.
- Scales differ from each block of K to the next by 2 or 4 in A, and by 8 in B where it has some, so both together
  differ too; the codes make up for them.
- Every sum stays within what the tensor core adds without cutting anything, so the result is exact: beyond
  that K, only every other element of A's slopes is not 0, or every fourth, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codes import Codes, encode
from ..ir.dtypes import DType
from ..ir.expr import DeviceScalar, Scalar, arguments, fold
from ..ir.groupings import Depth, Layout
from ..ir.row_sums import fold_rows
from ..problem import Problem
from ..recipes import SCALE_BLOCK, recipe
from .coded import exactly
from .drawn_arguments import drawn_arguments
from .engines import NumpyEngine
from .epilogue import evaluate, lift_arguments
from .inputs import (
    Operands,
    Values,
    check_sides,
    grouped,
    powers,
)
from .tensor_core import TENSOR_CORES

A_SCALES, B_SCALES = 2, 3  # exponents: of A 0, 1 and 2 below 1, of B 0 and 3
NEGATIVE = 8  # in a place of the table of codes
FP32_ROOM = 2.0**24
MOST = 4  # of a product
TRIES = 100
ENGINE = NumpyEngine()

Places = npt.NDArray[np.uint8]  # in that table: 0 for 0, e + 1 for 2^e
Exponents = npt.NDArray[np.int64]


def ladder(
    problem: Problem, m: int, n: int, k: int, seed: int, layout: Layout | None = None
) -> Operands:
    """Operands in 0, 1 and 2, of either sign; scales and arguments powers of two, arguments positive."""
    return grouped(problem, (m, n, k), seed, layout, _draw)


def stride(problem: Problem, k: int) -> int:
    """Of K, how far apart a slope's products are. Half of K is one slope."""
    core = TENSOR_CORES[problem.a]
    room = (
        FP32_ROOM if recipe(problem.family).promotes else 2.0 ** (min(core.aligned, core.kept) + 1)
    )
    apart = 1
    while MOST * k / 2 / apart >= room:
        apart *= 2
    return apart


def _draw(
    problem: Problem, shape: tuple[int, int, int], seed: int, summed: Sequence[Depth]
) -> Operands:
    m, n, k = shape
    check_sides(problem, shape)
    rng = np.random.Generator(np.random.PCG64(seed))
    a, b = np.zeros((m, k), np.uint8), np.zeros((n, k), np.uint8)
    for s in summed:
        ks = slice(s.first, s.end)
        _climb(rng, a[:, ks], b[:, ks], stride(problem, s.end - s.first))
    scale_a, scale_b = _scales(problem, rng, a, b)
    drawn = Operands(
        a=np.take(_table(problem.a), a),
        b=np.take(_table(problem.b), b),
        scale_a=scale_a,
        scale_b=scale_b,
        arguments=_arguments(problem, rng, shape),
        mn_major=problem.mn_major,
        rows_per_scale=recipe(problem.family).scale_rows or SCALE_BLOCK,
        fold=fold(problem.epilogue),
        fold_rows=fold_rows(problem.epilogue),
        heads=problem.gaps,
        squares=problem.squares,
    )
    return drawn if problem.form is None else exactly(drawn, problem.form, seed)


def _scales(
    problem: Problem, rng: np.random.Generator, a: Places, b: Places
) -> tuple[Values | None, Values | None]:
    """The codes, changed in place, make up for them."""
    sums = recipe(problem.family)
    if not sums.scaled:
        return None, None
    blocks = -(-a.shape[1] // SCALE_BLOCK)
    of_a = A_SCALES - _steps(rng, (len(a), blocks))
    _raise(a, of_a, 1)
    if not (rows := sums.scale_rows):
        return _below_one(of_a), None
    of_b = B_SCALES - _alternating(rng, (-(-len(b) // rows), blocks))
    _raise(b, of_b, rows)
    return _below_one(of_a), _below_one(of_b)


def _arguments(
    problem: Problem, rng: np.random.Generator, shape: tuple[int, int, int]
) -> dict[str, float | Values | Codes]:
    """Scalars with which the epilogue is not flat around the end, if a few draws find some: not a clamp
    from 1 to 1."""

    def numbers(shape: tuple[int, ...]) -> Values:
        return powers(rng, shape, exact=True)

    scalars = [x.name for x in arguments(problem.value) if isinstance(x, Scalar | DeviceScalar)]
    few = (1, fold(problem.epilogue), shape[2])
    for _ in range(TRIES if scalars else 0):
        tried = drawn_arguments(problem, few, numbers)
        if _lively(problem, tried, few):
            break
    return drawn_arguments(problem, shape, numbers) | {x: tried[x] for x in scalars}


def _lively(problem: Problem, drawn: Mapping[str, Any], shape: tuple[int, int, int]) -> bool:
    _, n, k = shape
    end = 1.0 if k % 2 == 0 else 3.0
    zeros = np.zeros((1, n), np.uint8)
    operands = Operands(a=zeros[:, :1], b=zeros.T, arguments=drawn, fold=n)
    args = lift_arguments(problem.value, operands, ENGINE)
    with np.errstate(all="ignore"):
        below, here, above = (
            evaluate(problem.value, np.full((1, n), end + by), args, ENGINE) for by in (-1, 0, 1)
        )
    return bool((below != here).all() and (here != above).all())


def _climb(rng: np.random.Generator, a: Places, b: Places, apart: int) -> None:
    """One stretch of K that is summed, in place."""
    k = a.shape[1]
    half = max(k - 1, 0) // (2 * SCALE_BLOCK) * SCALE_BLOCK
    for x in (a, b):
        x[:, :half] = 1 + _bits(rng, (x.shape[0], half))
        x[:, half : 2 * half] = x[:, :half]
    a[:, : 2 * half] *= np.arange(2 * half) % apart == 0
    b[:, half : 2 * half] += NEGATIVE
    a[:, 2 * half :], b[:, 2 * half :] = _end(k - 2 * half)


def _end(k: int) -> tuple[Places, Places]:
    """Products 2 so often, then -1, then -2: A has their size, B their sign."""
    up = (k + 1) // 2
    size, sign = np.full(k, 2, np.uint8), np.full(k, 1, np.uint8)
    size[up : up + 1] = 1
    sign[up:] += NEGATIVE
    return size, sign


def _bits(rng: np.random.Generator, shape: tuple[int, int]) -> Places:
    count = shape[0] * shape[1]
    drawn = np.frombuffer(rng.bytes(-(-count // 8)), np.uint8)
    return np.unpackbits(drawn, count=count).reshape(shape)


def _steps(rng: np.random.Generator, shape: tuple[int, int]) -> Exponents:
    """0, 1 or 2 [rows, blocks], never one twice in a row."""
    return np.asarray(rng.integers(1, A_SCALES + 1, shape).cumsum(1) % (A_SCALES + 1))


def _alternating(rng: np.random.Generator, shape: tuple[int, int]) -> Exponents:
    first = rng.integers(0, 2, (shape[0], 1))
    return np.asarray((first + np.arange(shape[1])) % 2 * B_SCALES)


def _below_one(exponents: Exponents) -> Values:
    return np.exp2(-exponents).astype(np.float32)


def _raise(places: Places, exponents: Exponents, rows: int) -> None:
    """Multiply, in place, by 2^exponents, each of which `rows` rows and a block of K share."""
    for block in range(exponents.shape[1]):
        here = places[:, block * SCALE_BLOCK : (block + 1) * SCALE_BLOCK]
        more = exponents[:, block].astype(np.uint8).repeat(rows)[: len(places)].reshape(-1, 1)
        here += more * (here > 0)


@cache
def _table(dtype: DType) -> Codes:
    values = np.exp2(np.arange(NEGATIVE) - 1.0)
    values[0] = 0.0
    return encode(np.concatenate([values, -values]), dtype)
