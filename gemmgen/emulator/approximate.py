"""ex2.approx, rcp.approx and div.approx of FP32, bit for bit as an H200 computes them.

The hardware interpolates 2^f by 64 parabolas and 1/f by 128, and truncates their squares in a way that
is nowhere published. approximate.npz holds what it returned for every mantissa: `curve`, the parabolas in
fixed point, and `off`, by how many units in the last place its results differ from them. How the argument
is reduced to a mantissa was measured too (tests/support/probe_approximate.py).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

FRACTION = 23  # bits of an FP32 mantissa after the point
MANTISSAS = 1 << FRACTION
BIAS = 127
INFINITY = 0xFF << FRACTION
SIGN = 1 << 31
NAN = np.uint32(0x7FFFFFFF).view(np.float32)
TINY = np.float32(2.0**-126)
FIXED = 20  # bits after the point of a parabola's coefficients
LARGEST = 512.0  # 2^x is infinite or 0 beyond it

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def ex2(x: Floats) -> Floats:
    """2^x. Below -126, where the hardware would return 0, the compiler squares the root."""
    small = x < np.float32(-126)
    root = _ex2(np.where(small, x * np.float32(0.5), x))
    return np.where(small, root * root, root)


def ex2_ftz(x: Floats) -> Floats:
    """2^x; 0 below -126."""
    return _ex2(x)


def rcp(x: Floats) -> Floats:
    """1 / x. Where x or 1 / x is subnormal, the compiler scales."""
    size = np.abs(x)
    scale = np.where(size > np.float32(2.0**126), np.float32(0.25), np.float32(1))
    scale = np.where(size < TINY, np.float32(2.0**24), scale)
    result: Floats = _rcp(x * scale) * scale
    return result


def rcp_ftz(x: Floats) -> Floats:
    """1 / x; subnormals are 0."""
    return _rcp(x)


def div(x: Floats, y: Floats) -> Floats:
    """x * (1 / y), each rounded; 0 where |y| > 2^126."""
    scale = np.where(np.abs(y) < TINY, np.float32(2.0**24), np.float32(1))
    result: Floats = _rcp(y * scale) * (x * scale)
    return result


@cache
def table(name: str) -> Ints:
    """By mantissa: what the hardware returns, its exponent apart."""
    with np.load(Path(__file__).with_name("approximate.npz")) as data:
        return np.asarray(parabolas(data[f"{name}_curve"]) + data[f"{name}_off"], np.int64)


def parabolas(curve: Ints) -> Ints:
    """The value at every mantissa of parabolas with coefficients `curve` [parabolas, 3]."""
    at = np.arange(MANTISSAS // len(curve))
    c0, c1, c2 = curve.T[:, :, None]
    values = (c0 + (c1 + (c2 * at >> FIXED)) * at) >> FIXED
    return np.asarray(values.reshape(-1), np.int64)


def _ex2(x: Floats) -> Floats:
    """Of |x|, 23 bits after the point count. A negative number with any of them is complemented, not
    negated: its fraction is one unit short."""
    fixed = np.trunc(np.fmin(np.abs(x), LARGEST).astype(np.float64) * MANTISSAS).astype(np.int64)
    whole = fixed & (MANTISSAS - 1) == 0
    fixed = np.where(x < 0, np.where(whole, -fixed, ~fixed), fixed)
    exponent, at = (fixed >> FRACTION) + BIAS, fixed & (MANTISSAS - 1)
    bits = table("ex2")[at] + (exponent << FRACTION)
    bits = np.where(exponent < 1, 0, np.where(bits >= INFINITY, INFINITY, bits))
    return _floats(bits, x)


def _rcp(x: Floats) -> Floats:
    bits = x.view(np.uint32).astype(np.int64)
    exponent, at = bits >> FRACTION & 0xFF, bits & (MANTISSAS - 1)
    result = table("rcp")[at] + ((2 * BIAS - 1 - exponent) << FRACTION)
    result = np.where((result < MANTISSAS) | (exponent == 0xFF), 0, result)
    result = np.where(exponent == 0, INFINITY, result)
    return _floats(result | bits & SIGN, x)


def _floats(bits: Ints, x: Floats) -> Floats:
    return np.where(np.isnan(x), NAN, bits.astype(np.uint32).view(np.float32))
