"""Of weights, what kernels multiply by, and scales as kernels take them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..codes import decode, encode
from ..errors import ArgumentError
from ..ir.codings import INT4, Sizes
from ..ir.dtypes import BF16, DTYPES, DType
from ..ir.packed import COLUMNS
from .numbers import Floats
from .packing import coding_for
from .records import sums_of
from .weights import Weights, dequantise, elements, grouped, scale_values


def multiplied(weights: Weights, to: DType = BF16) -> Floats:
    """What a kernel multiplies by where scales go into the weights, but for factors of a row or tensor: `dequantise`, each rounded to `to` once
    of INT4; else exactly it. Of INT4 with E4M3 the elements, times a power of two: scales are those of sums (`sum_scales`)."""
    if weights.format.element != INT4:
        return dequantise(weights)
    code = coding_for(weights.format, to)
    if isinstance(code, Sizes):
        return elements(weights) * 2.0**-code.left
    return decode(encode(dequantise(weights), to), to)


def sum_scales(weights: Weights, to: DType) -> npt.NDArray[np.float32] | None:
    """float32 [..., rows, columns / 128]: what sums of a kernel over each 128 columns are scaled by; None where weights are scaled themselves."""
    code = coding_for(weights.format, to)
    if not isinstance(code, Sizes):
        return None
    weights = grouped(weights, COLUMNS)
    return sums_of(weights, code.left)


def rescaled(weights: Weights, scale: str) -> Weights:
    """INT4 whose scales are rounded to the dtype `scale`, f16, bf16 or f32. Raises ArgumentError naming the format of other weights, or the scale
    of which there is none or that one overflows."""
    if weights.format.element != INT4:
        raise ArgumentError(
            "format", weights.format.name, "must be INT4: others have one dtype of scales"
        )
    form = replace(weights.format, scale=scale)
    bits = encode(scale_values(weights.format, weights.scales), DTYPES[scale])
    if not np.isfinite(scale_values(form, bits)).all():
        raise ArgumentError("scale", scale, "a scale overflows it")
    return replace(weights, format=form, scales=bits)
