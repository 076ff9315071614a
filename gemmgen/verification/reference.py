"""What a kernel should compute, and how far a correct one may be from it. float64 throughout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..codes import table
from ..errors import ArgumentError, UnsupportedProblem
from ..ir.dtypes import FP8
from ..problem import Problem
from ..recipes import SCALE_BLOCK, recipe
from .engines import Array, Engine
from .epilogue import ULP, Interval, enclose, evaluate, lift_arguments
from .inputs import Operands
from .squares import bounded_squares, with_squares
from .tensor_core import TENSOR_CORES, Approximate, Operand, Share, Slices, chain, operand

FP32_FLOOR = 2.0**-148  # absolute error of an FP32 operation whose result is subnormal
FP32_INTEGERS = 2.0**24  # up to which FP32 has all of them
MODEST = 50  # exponents of scales within which nothing here leaves FP32's range


@dataclass(frozen=True, kw_only=True, eq=False)
class Enclosure:
    """float64 [M, N]: the wanted value, and the least and greatest a correct kernel may hold in FP32
    before it rounds to the output dtype."""

    want: Array
    low: Array
    high: Array


class _Scales(NamedTuple):
    """One K block's scales, float64: of A's rows [M, 1], of B's columns [1, N]."""

    rows: Array
    columns: Array
    exact: bool  # all powers of two


class _Sum(NamedTuple):
    """What is summed by itself: operands, which of their K, and of each 128 of that which block of scales it has."""

    a: Operand
    b: Operand
    ks: range
    blocks: list[int]


def product(problem: Problem, operands: Operands, engine: Engine) -> Array:
    """epilogue(A @ B^T) of the dequantised operands, float64 [M, N]."""
    _check(problem, operands)
    a = engine.lookup(table(problem.a), engine.lift(operands.a))
    b = engine.lookup(table(problem.b), engine.lift(operands.b))
    acc = _scaled(operands, a, b, engine) if recipe(problem.family).scaled else a @ b.T
    acc = with_squares(problem, a, acc)
    # FP32 sums that cancel, or start from zero, give +0; a single -0 product would give -0 here.
    return finish(problem, operands, acc + 0.0, engine)


def enclosure(problem: Problem, operands: Operands, engine: Engine, share: Share = 0) -> Enclosure:
    """The wanted values with rigorous bounds for them, from K, the dtypes and the data.

    Assumes what both families emit: one wgmma chain over K (dense) or over each 128 of K, promoted
    by one FP32 multiply-add per block (fp8_block); where CTAs or warpgroups divide K, so over each `share` of it, and
    the sums added in order. Raises UnsupportedProblem where the epilogue cannot be bounded.
    """
    _check(problem, operands)
    a = operand(operands.a, problem.a, engine)
    b = operand(operands.b, problem.b, engine)
    acc = _shared(problem, operands, a, b, engine, share)
    acc = bounded_squares(problem, a.values, acc)
    # An integer sum is rounded when it becomes FP32.
    converted = 0.0
    if problem.a.integer and not problem.d.integer:
        size = abs(acc.value)
        converted = engine.where(size <= FP32_INTEGERS, 0.0, ULP * size)
    error = acc.error + FP32_FLOOR + converted
    args = lift_arguments(problem.value, operands, engine)
    held = Interval(low=acc.value - error, high=acc.value + error)
    with np.errstate(all="ignore"):
        held = enclose(problem.value, held, args, engine)
    want = finish(problem, operands, acc.value + 0.0, engine)
    return Enclosure(want=want, low=held.low, high=held.high)


def bound(problem: Problem, operands: Operands, engine: Engine) -> Array:
    """float64 [M, N]: a rigorous bound on |kernel - product|, before output rounding."""
    x = enclosure(problem, operands, engine)
    return engine.maximum(x.high - x.want, x.want - x.low)


def finish(problem: Problem, operands: Operands, acc: Array, engine: Engine) -> Array:
    """The epilogue's value of the sums `acc`, float64 [M, N]."""
    args = lift_arguments(problem.value, operands, engine)
    with np.errstate(all="ignore"):
        return evaluate(problem.value, acc, args, engine)


def _scaled(operands: Operands, a: Array, b: Array, engine: Engine) -> Array:
    """sum over K blocks of scale_a * scale_b * (A_block @ B_block^T)."""
    total = a[:, :0] @ b[:, :0].T  # zeros
    for block, start in enumerate(range(0, operands.shape[2], SCALE_BLOCK)):
        ks = slice(start, start + SCALE_BLOCK)
        scales = _scales(operands, block, engine)
        total = total + scales.rows * scales.columns * (a[:, ks] @ b[:, ks].T)
    return total


def _shared(
    problem: Problem, operands: Operands, a: Operand, b: Operand, engine: Engine, share: Share
) -> Approximate:
    """The sum over all of K: of each `share` of it by itself (0: of all at once), then of those in FP32."""
    sums = [_promoted(problem, operands, x, engine) for x in _apart(a, b, share)]
    acc, *others = sums
    for other in others:
        value, error = acc.value + other.value, acc.error + other.error
        rounding = 0.0 if problem.a.integer and not recipe(problem.family).promotes else ULP
        rounded = error + rounding * (abs(value) + error)
        acc = _settled(acc, other, Approximate(value=value, error=rounded), engine)
    return acc


def _apart(a: Operand, b: Operand, share: Share) -> Iterator[_Sum]:
    """One after the other."""
    k = a.values.shape[1]
    if isinstance(share, Slices):
        for places in share.of(k):
            blocks = [x // SCALE_BLOCK for x in places[::SCALE_BLOCK]]
            yield _Sum(a.columns(places), b.columns(places), range(len(places)), blocks)
        return
    whole = max(k, 1)  # a group may have none of it: one sum, of nothing
    for start in range(0, whole, share or whole):
        ks = range(start, min(start + (share or k), k))
        yield _Sum(a, b, ks, [x // SCALE_BLOCK for x in ks[::SCALE_BLOCK]])


def _settled(x: Approximate, y: Approximate, total: Approximate, engine: Engine) -> Approximate:
    """`total`, FP32's sum of the two, without an error where it has none: both summands are exact, and so
    small a multiple of 1 / grain is an FP32 number."""
    if x.grain is None or y.grain is None:
        return total
    grain = engine.maximum(x.grain, y.grain)
    exact = (x.error == 0) & (y.error == 0) & (abs(total.value) * grain <= FP32_INTEGERS)
    error = engine.where(exact, 0.0, total.error)
    return Approximate(value=total.value, error=error, grain=grain)


def _promoted(problem: Problem, operands: Operands, of: _Sum, engine: Engine) -> Approximate:
    """Each K block's chain, promoted: acc = fma(fl(scale_a * scale_b), part, acc) in FP32. One chain in a
    family that does not promote."""
    core, (a, b, ks, blocks) = TENSOR_CORES[problem.a], of
    if not recipe(problem.family).promotes:
        return chain(a, b, ks.start, ks.stop, core, engine)
    m, n, _ = operands.shape
    zeros = engine.lift(np.zeros((m, n)))
    acc = Approximate(value=zeros, error=zeros, grain=zeros)
    for start, block in zip(ks[::SCALE_BLOCK], blocks, strict=True):
        part = chain(a, b, start, min(start + SCALE_BLOCK, ks.stop), core, engine)
        acc = _promote(acc, part, _scales(operands, block, engine), engine)
    return acc


def _promote(acc: Approximate, part: Approximate, scales: _Scales, engine: Engine) -> Approximate:
    """ULP is twice FP32's rounding error: room for multiply, then add, and for float64's own error."""
    scale = scales.rows * scales.columns
    value = acc.value + scale * part.value
    scaled = abs(scale) * part.error
    scaled = scaled + (abs(scale) * ULP + FP32_FLOOR) * (abs(part.value) + part.error)
    error = acc.error + scaled + FP32_FLOOR
    total = Approximate(value=value, error=error + ULP * (abs(value) + error))
    if part.grain is None or not scales.exact:
        return total
    moved = Approximate(value=part.value, error=part.error, grain=part.grain / scale)
    return _settled(acc, moved, total, engine)


def _scales(operands: Operands, block: int, engine: Engine) -> _Scales:
    n = operands.shape[1]
    rows = columns = np.ones(1)
    if operands.scale_a is not None:
        rows = operands.scale_a[:, block].astype(np.float64)
    if operands.scale_b is not None:
        columns = operands.scale_b[:, block].astype(np.float64).repeat(operands.rows_per_scale)[:n]
    exact = _powers_of_two(rows) and _powers_of_two(columns)
    return _Scales(
        rows=engine.lift(rows.reshape(-1, 1)),
        columns=engine.lift(columns.reshape(1, -1)),
        exact=exact,
    )


def _powers_of_two(scales: npt.NDArray[np.float64]) -> bool:
    fraction, exponent = np.frexp(scales)
    return bool(((fraction == 0.5) & (abs(exponent) <= MODEST)).all())


def _together(problem: Problem) -> bool:
    """Whether one wgmma multiplies the two operand dtypes."""
    return problem.a == problem.b or {problem.a, problem.b} <= {*FP8}


def _check(problem: Problem, operands: Operands) -> None:
    sums = recipe(problem.family)
    if TENSOR_CORES.get(problem.a) is None or not _together(problem):
        raise UnsupportedProblem(f"no tensor core arithmetic known for {problem.a} x {problem.b}")
    for name, scaled in (("scale_a", sums.scaled), ("scale_b", sums.scaled_by_b(problem.form))):
        if (getattr(operands, name) is not None) != scaled:
            wanted = "required" if scaled else "not allowed"
            raise ArgumentError(name, getattr(operands, name), f"{wanted} in {problem.family}")
