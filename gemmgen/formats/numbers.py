"""Elements of 4 bits and scales that are exponents: codes and the numbers that they stand for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..ir.codings import E2M1_VALUES
from ..ir.packed import E8M0_BIAS

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

E2M1_MAX = E2M1_VALUES[-1]
E2M1_TOP = 2  # the exponent of the greatest
SIGN = 8
E8M0_NAN = 255
E8M0_LEAST, E8M0_MOST = -127, 127  # exponents


def e2m1_values(codes: Bytes) -> Floats:
    """The value of each code 0 to 15, in the shape of `codes`; 8 is -0."""
    size = np.array(E2M1_VALUES)[codes & 7]
    value: Floats = np.where(codes & SIGN, -size, size)
    return value


def e2m1(values: npt.NDArray[np.floating]) -> Bytes:
    """The code nearest to each finite value, ties to even codes; beyond 6 it is 6. -0 keeps its sign."""
    table = np.array(E2M1_VALUES)
    size = np.abs(np.asarray(values, np.float64))
    middles = (table[1:] + table[:-1]) / 2
    below = np.searchsorted(middles, size)  # a tie counts as the smaller, which must be even
    tied = np.append(middles, np.inf)[below] == size
    codes = below + (tied & (below % 2 == 1))
    signed: Bytes = (codes + SIGN * np.signbit(values)).astype(np.uint8)
    return signed


def e8m0_values(codes: Bytes) -> Floats:
    """2^(code - 127), in the shape of `codes`; 255 is NaN."""
    value = np.ldexp(1.0, codes.astype(np.int64) - E8M0_BIAS)
    return np.where(codes == E8M0_NAN, np.nan, value)
