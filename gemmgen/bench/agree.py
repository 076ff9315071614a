"""Whether a result is the product it should be: exactly for exact data, nearly for random data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..errors import VerificationError
from ..ir.dtypes import DType


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What |got - want| may be, relative to the root mean square of want: in the mean (root mean square)
    and at most."""

    mean: float
    most: float


# FP32 sums, or FP8 promoted every 128 of K, and rounded: a lost K block at K = 2^17 is 2^-5.
SUMMED = Bound(mean=2.0**-6, most=2.0**-3)
# The same, and then at most 8 results added up in BF16: each sum is rounded by 2^-9 of itself at most, which is less than 6 times the
# root mean square but for one in 10^8, so less than 2^-3 more.
ADDED = Bound(mean=2.0**-6, most=2.0**-2)
# Of two GEMMs, between which rows are quantised: a number that an honest difference of the first sum moves over the edge between two codes is 2^-3 of itself away,
# which the mean hardly sees. A layer in float64 whose first sums are moved by 2^-11 of their root mean square is up to 0.14 from itself (16 experts of 1024 x 512).
REQUANTISED = Bound(mean=2.0**-6, most=2.0**-2)
# FP8 summed in the tensor core's 14 bits: a lost K block at K = 2^14 is 2^-3.5.
FAST = Bound(mean=2.0**-4, most=2.0**-1)


def check_exact(got: Any, want: Any, dtype: DType) -> None:
    """`want` (float64) of exact data: `got` is it, rounded to `dtype` once or twice (split K).

    Arrays of NumPy or torch, float64. Raises VerificationError.
    """
    _check_shape(got, want)
    error = abs(got - want) - 2.0 ** (1 - dtype.significand) * abs(want)
    if not float(error.max()) <= 0:  # NaN is wrong too
        wrong = int((~(error <= 0)).sum())
        raise VerificationError(
            f"{wrong} of {math.prod(want.shape)} elements differ from the exact product"
        )


def check_near(got: Any, want: Any, bound: Bound) -> None:
    """`got` is within `bound` of `want`, float64 both. Raises VerificationError."""
    _check_shape(got, want)
    size = float((want * want).mean()) ** 0.5
    difference = abs(got - want)
    mean = float((difference * difference).mean()) ** 0.5
    most = float(difference.max())
    if not (mean <= bound.mean * size and most <= bound.most * size):
        raise VerificationError(
            f"differs from the product by {mean / size:.3g} of its root mean square in the mean "
            f"(allowed {bound.mean:.3g}) and {most / size:.3g} at most (allowed {bound.most:.3g})"
        )


def _check_shape(got: Any, want: Any) -> None:
    if tuple(got.shape) != tuple(want.shape):
        raise VerificationError(f"has the shape {tuple(got.shape)}, not {tuple(want.shape)}")
