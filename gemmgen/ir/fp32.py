"""Numbers as FP32 holds them."""

from __future__ import annotations

import math
import struct
from numbers import Number
from typing import Any

from ..errors import ArgumentError

FP32_RANGE = "from 2**-149 (1.4e-45) to 3.4028235e38 in magnitude, as FP32 holds it"


def number(argument: str, value: Any, allowed: str) -> float:
    """`value` as a float. Raises ArgumentError for what is none, and for what FP32 does not hold: true and
    false are no numbers, and what rounds to 0 or to infinity is another number."""
    meant = isinstance(value, Number) and not isinstance(value, bool)
    try:
        found = float(value) if meant else math.nan
        as_fp32 = fp32(found)
    except (
        TypeError,
        ValueError,
        OverflowError,
    ):  # complex; a Decimal's NaN; too large for a float
        as_fp32 = math.nan
    if not math.isfinite(as_fp32) or (found and not as_fp32):
        raise ArgumentError(argument, value, f"{allowed}: 0, or {FP32_RANGE}")
    return found


def fp32(value: float) -> float:
    """The nearest FP32, ties to even; infinite beyond the largest."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
