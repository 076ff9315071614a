"""Tables from which operands are drawn."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np

from ..codes import Codes, code_type, encode
from ..ir.dtypes import DType

DRAWS = 1 << 16  # one uniform 16-bit draw per element, looked up in a table of codes


def signs(dtype: DType, density: float) -> Codes:
    """The codes of -1, 0 and 1, as often as `density` says."""
    half = round(DRAWS * density / 2)
    values = np.zeros(DRAWS)
    values[:half], values[DRAWS - half :] = -1.0, 1.0
    return encode(values, dtype)


@cache
def normal(dtype: DType) -> Codes:
    """The codes of the normal distribution's 65,536 equally likely values."""
    if dtype.integer:
        return np.arange(DRAWS).astype(code_type(dtype))
    quantile = NormalDist().inv_cdf
    upper = np.array([quantile((i + 0.5) / DRAWS) for i in range(DRAWS // 2, DRAWS)])
    codes = encode(np.concatenate([-upper[::-1], upper]), dtype)
    assert codes.dtype == code_type(dtype)
    codes.flags.writeable = False
    return codes
