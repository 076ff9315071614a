"""FP32 and FP64 arithmetic to the last bit, and the approximate functions, which say that they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import approximate
from .errors import UnsupportedInstruction
from .group import Group
from .program import NUMPY, Op, Scope
from .syntax import Instruction

NAN = np.uint32(0x7FFFFFFF)  # what FP32 arithmetic returns (PTX ISA, floating-point instructions)
TINY = np.float32(2.0**-126)
BINARY: Mapping[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.fmin,
    "max": np.fmax,
}
# As the hardware approximates them, by opcode.
MEASURED: Mapping[str, Callable[..., Any]] = {
    "ex2.approx.ftz.f32": approximate.ex2_ftz,
    "ex2.approx.f32": approximate.ex2,
    "rcp.approx.ftz.f32": approximate.rcp_ftz,
    "rcp.approx.f32": approximate.rcp,
    "div.approx.f32": approximate.div,
}
# Correctly rounded here; on the hardware a few units off. Stats name them.
APPROXIMATE: Mapping[str, Callable[[Any], Any]] = {
    "lg2": np.log2,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}
ROUNDED: Mapping[str, Callable[[Any], Any]] = {"rcp": lambda x: 1.0 / x, **APPROXIMATE}


def flushed(x: Any) -> Any:
    """Subnormals to zero, the sign kept."""
    return np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x)


def _check(i: Instruction, kinds: tuple[str, ...] = ("f32", "f64")) -> str:
    kind = i.parts[-1]
    if kind not in kinds or {"rz", "rm", "rp"} & set(i.parts):
        raise UnsupportedInstruction(str(i))
    return kind


def finish(i: Instruction, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the instruction's .ftz and .sat, and the hardware's NaN."""
    ftz, sat, single = "ftz" in i.parts, "sat" in i.parts, i.parts[-1] == "f32"

    def finished(*sources: Any) -> Any:
        if ftz:
            sources = tuple(map(flushed, sources))
        result = np.asarray(function(*sources))
        if ftz:
            result = flushed(result)
        if sat:
            result = np.fmin(np.fmax(result, np.float32(0)), np.float32(1))
        if single and np.isnan(result).any():
            result = np.where(np.isnan(result), NAN.view(np.float32), result.astype(np.float32))
        return result

    return finished


def apply(i: Instruction, s: Scope, function: Callable[..., Any], count: int) -> Op:
    """d = function(sources), `count` of them, all of the instruction's type."""
    kind = i.parts[-1]
    d = s.dst(i.operands[0], kind)
    sources = [s.src(o, kind) for o in i.operands[1 : 1 + count]]
    finished = finish(i, function)

    def op(g: Group) -> None:
        r = g.R
        np.copyto(r[d], finished(*[r[x] for x in sources]), where=g.where)

    return op


def binary(i: Instruction, s: Scope) -> Op:
    """min and max return the number if one operand is NaN, unless .NaN asks otherwise."""
    _check(i)
    function = BINARY[i.parts[0]]
    if "NaN" in i.parts:
        function = np.minimum if i.parts[0] == "min" else np.maximum
    if i.parts[0] in ("min", "max"):
        return apply(i, s, lambda x, y: _ordered_zero(function, x, y, i.parts[0]), 2)
    return apply(i, s, function, 2)


def _ordered_zero(function: np.ufunc, x: Any, y: Any, name: str) -> Any:
    """-0 is less than +0 (PTX ISA, min and max)."""
    result = function(x, y)
    zeros = (x == 0) & (y == 0)
    if zeros.any():
        negative = np.signbit(x) | np.signbit(y) if name == "min" else np.signbit(x) & np.signbit(y)
        zero = np.where(negative, -x.dtype.type(0), x.dtype.type(0))
        result = np.where(zeros, zero, result)
    return result


def unary(i: Instruction, s: Scope) -> Op:
    """neg and abs touch the sign bit only, NaN included."""
    kind = i.parts[-1]
    bits = f"u{np.dtype(NUMPY[kind]).itemsize * 8}"
    sign = np.array(1 << (8 * np.dtype(NUMPY[kind]).itemsize - 1), NUMPY[bits])
    d, a = s.dst(i.operands[0], bits), s.src(i.operands[1], bits)
    negate = i.parts[0] == "neg"

    def op(g: Group) -> None:
        x = g.R[a]
        np.copyto(g.R[d], x ^ sign if negate else x & ~sign, where=g.where)

    return op


def divide(i: Instruction, s: Scope) -> Op:
    """div.rn and div.approx; .full is within 2 units on the hardware, correctly rounded here."""
    _check(i)
    return apply(i, s, MEASURED.get(i.opcode, np.divide), 2)


def function(i: Instruction, s: Scope) -> Op:
    """The approximate functions, and the rounded forms of rcp and sqrt."""
    kind = _check(i)
    measured = MEASURED.get(i.opcode)
    if measured:
        return apply(i, s, measured, 1)
    wide = ROUNDED[i.parts[0]]

    def narrow(x: Any) -> Any:
        return wide(x.astype(np.float64)).astype(NUMPY[kind])

    return apply(i, s, narrow, 1)


def fma(i: Instruction, s: Scope) -> Op:
    kind = _check(i)
    return apply(i, s, fma32 if kind == "f32" else fma64, 3)


def fma32(a: Any, b: Any, c: Any) -> Any:
    """a * b + c rounded once. The product is exact in float64; the sum is rounded to odd there, so
    that rounding it again to float32 gives what one rounding would."""
    product = np.multiply(a, b, dtype=np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)  # exact (Knuth's two-sum)
    if np.count_nonzero(error):  # NaN where an operand is infinite
        total = _to_odd(total, error)
    return total.astype(np.float32)


def _to_odd(total: Any, error: Any) -> Any:
    bits = total.view(np.int64)
    even = (error != 0) & np.isfinite(error) & np.isfinite(total) & (bits & 1 == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(even, bits + step, bits).view(np.float64)


def fma64(a: Any, b: Any, c: Any) -> Any:
    """Exact rational arithmetic: rare, so it may be slow."""
    raise UnsupportedInstruction("fma.f64")


def copysign(i: Instruction, s: Scope) -> Op:
    """The second operand with the sign of the first (PTX ISA, copysign)."""
    kind = _check(i)
    d, a, b = s.dst(i.operands[0], kind), *(s.src(o, kind) for o in i.operands[1:3])

    def op(g: Group) -> None:
        np.copyto(g.R[d], np.copysign(g.R[b], g.R[a]), where=g.where)

    return op


HANDLERS = {**dict.fromkeys(("ex2", *ROUNDED), function), "copysign": copysign}
