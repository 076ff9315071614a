"""What belongs to rows and groups of weights as packed blocks have it: records beside the codes, and factors of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ..ir.codings import LEFT, SCALE_BIAS, SHIFTS, AnyCoding, Coding, Sizes
from ..ir.dtypes import E4M3, DType
from ..ir.packed import E8M0, E8M0_BIAS
from .format import Format
from .numbers import Floats
from .weights import Weights, scale_type, scale_values, separate

FRACTION_BITS = E4M3.significand - 1
FRACTION = (1 << FRACTION_BITS) - 1
MOST_E8M0 = 128  # a scale's exponent is stored in a factor of BF16, up to 2^127


def records_of(weights: Weights, code: AnyCoding) -> Any:
    """Of each row and group."""
    if weights.format.scale == E8M0 and int(weights.scales.max(initial=0)) > MOST_E8M0:
        raise ArgumentError("scales", int(weights.scales.max()), f"must be at most {MOST_E8M0}")
    if weights.format.tensor_scaled:
        return _lifted(weights)
    if isinstance(code, Sizes):
        return sums_of(weights, code.left).view(np.uint32)
    if weights.zeros is None:
        return weights.scales
    zeros = weights.zeros.astype(np.uint32) + magic(code)
    return weights.scales.astype(np.uint32) | zeros << 16


def _lifted(weights: Weights) -> Any:
    """Scales of E4M3 as kernels add to exponents: subnormal ones as if they were none, and 0, whose codes are not kept, as the least."""
    values = scale_values(weights.format, weights.scales)
    if (values < 0).any():
        raise ArgumentError("scales", float(values.min()), "must not be below 0")
    fraction, exponent = np.frexp(values)
    lifted = (exponent - 1 + SCALE_BIAS << FRACTION_BITS) + (2 * fraction - 1) * (FRACTION + 1)
    return np.where(values > 0, lifted, 0).astype(np.uint8)


def lowered(records: Any) -> Floats:
    """The scales that `_lifted` made so."""
    exponents = (records >> FRACTION_BITS).astype(np.int64) - SCALE_BIAS
    found: Floats = np.ldexp(1 + (records & FRACTION) / (FRACTION + 1), exponents)
    return found


def factor_of(weights: Weights) -> float:
    if not weights.format.tensor_scaled:
        return 1.0
    factor = weights.tensor_scale * 2.0**LEFT
    if abs(factor) > float(np.finfo(np.float32).max):
        allowed = f"times {2**LEFT} must be a float32"
        raise ArgumentError("tensor_scale", weights.tensor_scale, allowed)
    return factor


def of_rows(weights: Weights, left: int) -> Any:
    """float32 [..., rows]: scales times 2^left."""
    return sums_of(weights, left)[..., 0]


def sums_of(weights: Weights, left: int) -> npt.NDArray[np.float32]:
    """float32 [..., rows, groups]: scales times 2^left."""
    scales = scale_values(weights.format, weights.scales) * 2.0**left
    if (np.abs(scales) > float(np.finfo(np.float32).max)).any():
        worst = float(np.abs(scales).max()) / 2**left
        raise ArgumentError("scales", worst, f"times {2**left} must be a float32")
    found: npt.NDArray[np.float32] = scales.astype(np.float32)
    return found


def folded_exponents(weights: Weights, to: DType) -> tuple[Any, Any]:
    """Of each row and group its exponent less its row's, from the least on that is exact, uint8; of each row what it is less by, int16."""
    least, highest = SHIFTS[to]
    group = weights.format.group
    codes = separate(weights.codes, weights.format)
    some = (codes.reshape(*codes.shape[:-1], -1, group) & 7).any(-1)
    exponents = weights.scales.astype(np.int64) - E8M0_BIAS
    most = np.where(some, exponents, -E8M0_BIAS).max(-1, initial=-E8M0_BIAS)
    bases = most - highest
    shifts = exponents - bases[..., None]
    worst = int(np.where(some, shifts, highest).min(initial=highest))
    if worst < least:
        allowed = f"a row's exponents must span at most {highest - least} for {to}"
        raise ArgumentError("scales", highest - worst, allowed)
    kept = np.clip(shifts, least, highest) - least
    return kept.astype(np.uint8), bases.astype(np.int16)


def magic(code: AnyCoding) -> int:
    return code.magic if isinstance(code, Coding) else 0


def record_type(form: Format) -> Any:
    return np.dtype(np.uint32) if form.zeros else scale_type(form)
