"""Epilogue expressions in float64: their value, and an interval that holds the kernel's FP32 result."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from ..codes import code_type
from ..errors import ArgumentError, UnsupportedProblem
from ..ir.dtypes import F32
from ..ir.expr import (
    APPROXIMATE,
    Acc,
    Argument,
    BinOp,
    Call,
    Const,
    DeviceScalar,
    Expr,
    InWindow,
    OfPair,
    OfRows,
    PerColumn,
    PerElement,
    PerRow,
    RowBound,
    Scalar,
    arguments,
    functions,
)
from .engines import Array, Engine
from .inputs import Operands
from .windows import by_row_of_d, windowed

ULP = 2.0**-23  # one FP32 unit in the last place, relative to the value
FP32_MAX = 2.0**128 - 2.0**104
FP32_TINY = 2.0**-149  # the smallest subnormal
FP32_FLUSHED = 2.0**-126  # approximations may flush results below this to zero
DIVISOR_MIN, DIVISOR_MAX = 2.0**-126, 2.0**126  # between which __fdividef is at most 2 units off
EXP_LIMIT = 1000.0  # beyond it e^x is zero or infinity in FP32, whatever the error

# Relative error of one FP32 operation; generous enough for a contraction to FMA, and for "/" for
# a division that is two units off.
ROUNDING = {"+": ULP, "-": ULP, "*": ULP, "/": 4 * ULP}
OPERATORS: dict[str, Callable[[Array, Array], Array]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}

Arguments = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class Interval:
    """float64 arrays that broadcast to [M, N]: low <= every value the kernel may hold <= high."""

    low: Array
    high: Array


def lift_arguments(e: Expr, operands: Operands, engine: Engine) -> Arguments:
    """The arguments `e` reads, float64: scalars [1, 1], per column [1, N], per row [M, 1], per element
    [M, N], windows' bounds per row of D."""
    m, n, _ = operands.shape
    shapes: dict[type[Argument], tuple[int, int]] = {Scalar: (1, 1), DeviceScalar: (1, 1)}
    shapes |= {PerColumn: (1, n), PerRow: (m, 1), RowBound: (operands.d_m, 1)}

    def lifted(x: Argument) -> Array:
        if x.name not in operands.arguments:
            raise ArgumentError(x.name, None, "the epilogue reads it, but the operands lack it")
        given = np.asarray(operands.arguments[x.name])
        if isinstance(x, PerElement):
            return engine.decode(engine.lift(_codes(x, given, (m, n))), x.dtype)
        return engine.lift(_values(x, given, shapes[type(x)]))

    return {x.name: lifted(x) for x in arguments(e)}


def _codes(x: PerElement, given: Array, shape: tuple[int, int]) -> Array:
    if given.shape != shape or given.dtype != code_type(x.dtype):
        allowed = f"must have the shape {shape} and hold codes of {x.dtype}"
        raise ArgumentError(x.name, (given.shape, str(given.dtype)), allowed)
    return given


def _values(x: Argument, given: Array, shape: tuple[int, int]) -> Array:
    if given.size != shape[0] * shape[1]:
        raise ArgumentError(x.name, given.shape, f"must have {shape[0] * shape[1]} elements")
    return given.astype(np.float32).astype(np.float64).reshape(shape)


def transcendental(e: Expr) -> bool:
    """Does `e` contain a function that FP32 hardware only approximates?"""
    return not APPROXIMATE.isdisjoint(functions(e))


def evaluate(e: Expr, acc: Array, args: Arguments, engine: Engine) -> Array:
    """`e` in float64 for the accumulators `acc` [M, N]: [M / fold_rows(e), N / fold(e)]."""

    def value(x: Expr) -> Array:
        return evaluate(x, acc, args, engine)

    match e:
        case Acc():
            return acc
        case Const(number):
            return _constant(number, engine)
        case Argument(name):
            return args[name]
        case OfPair(x, which):
            return _column_of_pair(value(x), which)
        case OfRows(x, rows):
            return by_row_of_d(value(x), rows).sum(1)
        case InWindow(x, first, end):
            return windowed(value(x), args[first.name] if first else 0, args[end.name], engine)
        case BinOp(op, lhs, rhs):
            return OPERATORS[op](value(lhs), value(rhs))
        case Call("max", xs):
            return reduce(engine.maximum, map(value, xs))
        case Call("min", xs):
            return reduce(partial(_minimum, engine), map(value, xs))
        case Call("exp", (x,)):
            return engine.exp(value(x))
        case Call("tanh", (x,)):
            return engine.tanh(value(x))
        case Call("erf", (x,)):
            return engine.erf(value(x))
        case Call("divide", (x, y)):
            return value(x) / value(y)
    raise UnsupportedProblem(f"no float64 meaning is known for the epilogue {e!r}")


def enclose(e: Expr, acc: Interval, args: Arguments, engine: Engine) -> Interval:
    """Every value an FP32 evaluation of `e` can give for any accumulator in `acc`.

    Raises UnsupportedProblem for a function without a known error and for a divisor that may be zero.
    """

    def inner(x: Expr) -> Interval:
        return enclose(x, acc, args, engine)

    match e:
        case Acc():
            return acc
        case Const(number):
            return _point(_constant(number, engine))
        case Argument(name):
            return _point(args[name])
        case OfPair(x, which):
            pair = inner(x)
            low, high = (_column_of_pair(end, which) for end in (pair.low, pair.high))
            return Interval(low=low, high=high)
        case OfRows(x, rows):
            return _sum_of_rows(inner(x), rows, engine)
        case InWindow(x, first, end):
            held, bounds = inner(x), (args[first.name] if first else 0, args[end.name])
            low, high = (windowed(side, *bounds, engine) for side in (held.low, held.high))
            return Interval(low=low, high=high)
        case BinOp(op, lhs, rhs):
            exact = INTERVALS[op](inner(lhs), inner(rhs), engine)
            return _widen(exact, ROUNDING[op], FP32_TINY, engine)
        case Call("max", xs):
            return reduce(partial(_both, engine.maximum), map(inner, xs))
        case Call("min", xs):
            return reduce(partial(_both, partial(_minimum, engine)), map(inner, xs))
        case Call("exp", (x,)):
            return _exp(inner(x), engine)
        case Call("tanh", (x,)):
            return _tanh(inner(x), engine)
        case Call("erf", (x,)):
            return _erf(inner(x), engine)
        case Call("divide", (x, y)):
            return _fast_divide(inner(x), inner(y), engine)
    raise UnsupportedProblem(f"no error bound is known for the epilogue {e!r}")


def _column_of_pair(x: Array, which: int) -> Array:
    """Every other column, if they differ."""
    return x if x.shape[1] == 1 else x[:, which::2]


def _sum_of_rows(x: Interval, rows: int, engine: Engine) -> Interval:
    """Of n numbers, added in any order by n - 1 operations and 0 first, each of half a unit: n u / (1 - n u) of the sum of their sizes
    (Higham, Accuracy and Stability of Numerical Algorithms, 4.2). A product that is fused with its addition is within its own error."""
    low, high = (by_row_of_d(side, rows) for side in (x.low, x.high))
    sizes = engine.maximum(abs(low), abs(high)).sum(1)
    share = rows * ULP / 2
    off = sizes * (share / (1 - share)) + rows * FP32_TINY
    exact = Interval(low=low.sum(1) - off, high=high.sum(1) + off)
    return _widen(exact, ULP, FP32_TINY, engine)


def _constant(number: float, engine: Engine) -> Array:
    """As the kernel has it: rounded to FP32."""
    return engine.lift(np.full((1, 1), np.float32(number), np.float64))


def _point(x: Array) -> Interval:
    return Interval(low=x, high=x)


def _minimum(engine: Engine, x: Array, y: Array) -> Array:
    return -engine.maximum(-x, -y)


def _both(function: Callable[[Array, Array], Array], x: Interval, y: Interval) -> Interval:
    """A function that grows with both arguments and is exact in FP32."""
    return Interval(low=function(x.low, y.low), high=function(x.high, y.high))


def _add(x: Interval, y: Interval, engine: Engine) -> Interval:
    return Interval(low=x.low + y.low, high=x.high + y.high)


def _subtract(x: Interval, y: Interval, engine: Engine) -> Interval:
    return Interval(low=x.low - y.high, high=x.high - y.low)


def _multiply(x: Interval, y: Interval, engine: Engine) -> Interval:
    corners = (x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high)
    return Interval(
        low=reduce(partial(_minimum, engine), corners), high=reduce(engine.maximum, corners)
    )


def _divide(x: Interval, y: Interval, engine: Engine) -> Interval:
    if bool(((y.low <= 0) & (y.high >= 0)).any()):
        raise UnsupportedProblem("no error bound: the epilogue divides by what may be zero")
    return _multiply(x, Interval(low=1.0 / y.high, high=1.0 / y.low), engine)


INTERVALS: dict[str, Callable[[Interval, Interval, Engine], Interval]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
}


def _widen(x: Interval, relative: Array, absolute: float, engine: Engine) -> Interval:
    """Outward by an FP32 operation's error; what passes FP32's range becomes infinite."""
    low = engine.where(x.low > FP32_MAX, FP32_MAX, x.low)  # infinity - infinity has no value
    high = engine.where(x.high < -FP32_MAX, -FP32_MAX, x.high)
    return Interval(
        low=_fp32(low - abs(low) * relative - absolute, engine),
        high=_fp32(high + abs(high) * relative + absolute, engine),
    )


def _fp32(x: Array, engine: Engine) -> Array:
    return engine.decode(engine.round_to(x, F32), F32)


def _exp(x: Interval, engine: Engine) -> Interval:
    """__expf: at most 2 + 1.173 |x| units off (CUDA C++ Programming Guide, intrinsic functions)."""
    largest = engine.maximum(abs(x.low), abs(x.high))
    largest = engine.where(largest > EXP_LIMIT, EXP_LIMIT, largest)
    exact = Interval(low=engine.exp(x.low), high=engine.exp(x.high))
    wide = _widen(exact, (4 + 1.2 * largest) * ULP, FP32_FLUSHED, engine)
    return Interval(low=engine.where(wide.low < 0, 0.0, wide.low), high=wide.high)


def _tanh(x: Interval, engine: Engine) -> Interval:
    """tanhf: at most 2 units off (same guide, standard functions)."""
    exact = Interval(low=engine.tanh(x.low), high=engine.tanh(x.high))
    return _widen(exact, 4 * ULP, FP32_TINY, engine)


def _erf(x: Interval, engine: Engine) -> Interval:
    """erff: at most 2 units off (same guide, standard functions)."""
    exact = Interval(low=engine.erf(x.low), high=engine.erf(x.high))
    return _widen(exact, 4 * ULP, FP32_TINY, engine)


def _fast_divide(x: Interval, y: Interval, engine: Engine) -> Interval:
    """__fdividef: at most 2 units off, or 0 for a divisor over 2^126 (same guide, intrinsic functions)."""
    if bool(((y.low < DIVISOR_MIN) & (y.high > -DIVISOR_MIN)).any()):
        raise UnsupportedProblem("no error bound: the epilogue divides by what may be below 2^-126")
    wide = _widen(_divide(x, y, engine), 4 * ULP, FP32_FLUSHED, engine)
    zero = (y.low < -DIVISOR_MAX) | (y.high > DIVISOR_MAX)
    return Interval(
        low=engine.where(zero & (wide.low > 0), 0.0, wide.low),
        high=engine.where(zero & (wide.high < 0), 0.0, wide.high),
    )
