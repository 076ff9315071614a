"""Weights of 4 and 8 bits from numbers, to the nearest: what the formats' own rules say, without calibration."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..codes import decode, encode
from ..errors import ArgumentError
from ..ir.codings import FP8, INT4, INT8, ZERO
from ..ir.dtypes import E4M3, F32
from ..ir.packed import E8M0_BIAS
from ..ir.stores import E4M3_MAX
from .format import Format
from .numbers import E2M1_MAX, E2M1_TOP, E8M0_LEAST, E8M0_MOST, Bytes, Floats, e2m1
from .weights import Weights, joined, scale_values

INT4_MAX = 7  # without zero points both signs reach as far
LEVELS = 15  # steps from the least to the greatest code
INT8_MAX = 127  # as far as both signs reach


def quantise(x: npt.NDArray[np.floating], form: Format) -> Weights:
    """`x`, finite numbers [..., N, K], in `form`; every element becomes the code nearest to it.

    INT4: a group's scale is its greatest magnitude over 7, with zeros the distance from its least to its greatest number, 0
    among them, over 15, rounded to the scale's dtype. MXFP4: a group's scale is the power of two of its greatest magnitude over 4, and what is
    beyond 6 of it becomes 6 (OCP Microscaling Formats 1.0, section 6.3). NVFP4: the tensor's scale is its greatest magnitude over
    6 * 448, a group's is its own over 6 and over the tensor's, in E4M3. INT8 and E4M3: a row's scale is its greatest magnitude over 127 or 448.

    Raises ArgumentError for another shape, for NaN and infinity, and where a scale overflows its dtype.
    """
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
        kind = x.dtype if isinstance(x, np.ndarray) else type(x).__name__
        raise ArgumentError("x dtype", str(kind), "must be a NumPy array of floats")
    if x.ndim < 2 or 0 in x.shape:
        raise ArgumentError("x shape", x.shape, "must be [..., N, K], none of them 0")
    if not np.isfinite(x).all():
        raise ArgumentError("x", float(x[~np.isfinite(x)][0]), "must be finite")
    group = form.group_of(x.shape[-1])
    groups = x.astype(np.float64).reshape(*x.shape[:-1], -1, group)
    if form.element == INT4:
        return _int4(groups, form)
    if form.bits == 8:
        return _of_rows(groups, form)
    return _nvfp4(groups, form) if form.tensor_scaled else _mxfp4(groups, form)


def _int4(groups: Floats, form: Format) -> Weights:
    least, most = np.minimum(groups.min(-1), 0.0), np.maximum(groups.max(-1), 0.0)
    size = (most - least) / LEVELS if form.zeros else np.maximum(most, -least) / INT4_MAX
    assert form.scale_dtype is not None
    bits = encode(size, form.scale_dtype)
    scale = scale_values(form, bits)
    if not np.isfinite(scale).all():
        greatest = float(size.max())
        raise ArgumentError("x", greatest, f"a scale of this size is none in {form.scale}")
    zeros = (
        np.clip(np.rint(_over(-least, scale)), 0, LEVELS)
        if form.zeros
        else np.full(scale.shape, ZERO)
    )
    codes = np.clip(np.rint(_over(groups, scale[..., None])) + zeros[..., None], 0, LEVELS)
    kept = zeros.astype(np.uint8) if form.zeros else None
    return Weights(format=form, codes=_rows(codes, form), scales=bits, zeros=kept)


def _of_rows(groups: Floats, form: Format) -> Weights:
    size = np.abs(groups).max(-1) / {INT8: INT8_MAX, FP8: E4M3_MAX}[form.element]
    bits = encode(size, F32)
    scale = scale_values(form, bits)
    if not np.isfinite(scale).all():
        raise ArgumentError("x", float(size.max()), f"a scale of this size is none in {form.scale}")
    values = _over(groups, scale[..., None])
    codes = (
        np.clip(np.rint(values), -INT8_MAX, INT8_MAX).astype(np.int8).view(np.uint8)
        if form.element == INT8
        else encode(np.clip(values, -E4M3_MAX, E4M3_MAX), E4M3)
    )
    return Weights(format=form, codes=_rows(codes, form), scales=bits)


def _mxfp4(groups: Floats, form: Format) -> Weights:
    amax = np.abs(groups).max(-1)
    exponent = np.where(amax > 0, np.frexp(amax)[1] - 1 - E2M1_TOP, E8M0_LEAST)
    exponent = np.clip(exponent, E8M0_LEAST, E8M0_MOST)
    codes = e2m1(np.ldexp(groups, -exponent[..., None]))
    return Weights(
        format=form, codes=_rows(codes, form), scales=(exponent + E8M0_BIAS).astype(np.uint8)
    )


def _nvfp4(groups: Floats, form: Format) -> Weights:
    amax = np.abs(groups).max(-1)
    whole = _float32(amax.max(initial=0.0) / (E2M1_MAX * E4M3_MAX))
    if not np.isfinite(whole):
        raise ArgumentError("x", float(amax.max()), "the tensor's scale is none in float32")
    bits = encode(_over(amax / E2M1_MAX, whole), E4M3)
    scale = decode(bits, E4M3) * whole
    codes = e2m1(_over(groups, scale[..., None]))
    return Weights(format=form, codes=_rows(codes, form), scales=bits, tensor_scale=whole or 1.0)


def _float32(x: float) -> float:
    """Rounded; infinite where it overflows."""
    return float(decode(encode(np.array([x]), F32), F32)[0])


def _over(x: Floats, scale: npt.NDArray[np.floating] | float) -> Floats:
    """x / scale; 0 where the scale is."""
    return np.divide(
        x, scale, out=np.zeros(np.broadcast_shapes(x.shape, np.shape(scale))), where=scale != 0
    )


def _rows(codes: npt.NDArray[np.generic], form: Format) -> Bytes:
    """[..., groups, group] -> the bytes of the rows."""
    flat = codes.astype(np.uint8).reshape(*codes.shape[:-2], -1)
    return joined(flat, form)
