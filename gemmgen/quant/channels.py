"""Weights of 8 bits with a scale for each output channel, INT8 and FP8, by the names of compressed-tensors."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ArgumentError
from ..formats import FP8_ROWS, INT8_ROWS
from ..formats.weights import E4M3_NAN
from ..runtime.torch_tensors import torch
from .named import Tensors, finite, floats, shaped, tensor
from .quantised import Quantised

WORD = 4  # codes of an int32
OFFSET = 128  # of codes that are packed


def channels(tensors: Tensors, name: str) -> Quantised:
    """The weights `name` in INT8 or FP8: codes times their row's scale.

    They are `name`.weight, int8 or float8_e4m3fn [..., N, K], and `name`.weight_scale, float32, bfloat16 or float16 [..., N, 1] or [..., N], or one number
    for all rows: the formats "int-quantized", "float-quantized" and "naive-quantized" of compressed-tensors, and FP8 of others that call them so. K is even.

    Returns weights [..., N, K], codes over the memory of a contiguous weight. Raises ArgumentError naming the tensor: one that is missing, of another dtype
    or shape, a scale or a code that is no finite number, and a `name`.weight_zero_point that is not 0.
    """
    at = f"{name}.weight"
    codes = tensor(tensors, at, (torch().int8, torch().float8_e4m3fn), 2, more=True)
    octets = codes.contiguous().view(torch().uint8)
    form = INT8_ROWS if codes.dtype == torch().int8 else FP8_ROWS
    if form == FP8_ROWS and bool(((octets & E4M3_NAN) == E4M3_NAN).any()):
        raise ArgumentError(at, math.nan, "must be finite numbers")
    _check_zeros(tensors, name, 0)
    return Quantised(format=form, codes=octets, scales=_scales(tensors, name, at, octets))


def channels_packed(tensors: Tensors, name: str) -> Quantised:
    """The same of INT8 in words, the format "pack-quantized" of compressed-tensors with 8 bits: `name`.weight_packed, int32 [N, ceil(K / 4)], each byte a code and
    128, the first column in the lowest, `name`.weight_shape, [N, K], and `name`.weight_scale. Raises as `channels`, and for rows by an index, `name`.weight_g_idx."""
    at, of = f"{name}.weight_packed", f"{name}.weight_shape"
    words = tensor(tensors, at, (torch().int32,), 2)
    sides = tensor(tensors, of, (torch().int32, torch().int64), 1)
    shaped(of, sides, (2,), "rows and columns")
    rows, columns = map(int, sides.tolist())
    shaped(at, words, (rows, -(-columns // WORD)), f"four codes of {columns} columns to a word")
    if f"{name}.weight_g_idx" in tensors:
        raise ArgumentError(
            f"{name}.weight_g_idx", "is given", "must be absent: rows have one scale"
        )
    octets = words.contiguous().view(torch().uint8)[:, :columns] ^ OFFSET
    _check_zeros(tensors, name, OFFSET)
    return Quantised(
        format=INT8_ROWS, codes=octets.contiguous(), scales=_scales(tensors, name, at, octets)
    )


def _scales(tensors: Tensors, name: str, at: str, codes: Any) -> Any:
    """float32 [..., N, 1]."""
    of = f"{name}.weight_scale"
    found = tensor(tensors, of, floats(), 0, more=True)
    rows = codes.shape[:-1]
    if codes.shape[-1] % 2:
        raise ArgumentError(
            f"{at} shape", tuple(codes.shape), "must have an even number of columns"
        )
    if found.numel() == 1:
        found = found.reshape(())
    else:
        found = found.unsqueeze(-1) if found.dim() == len(rows) else found
        shaped(of, found, (*rows, 1), "a scale for each row")
    finite(of, found)
    return found.float().expand(*rows, 1).contiguous()


def _check_zeros(tensors: Tensors, name: str, offset: int) -> None:
    """Raise ArgumentError for zero points that are not 0: of codes in words they lie in words too, four rows in one, as `offset` and the zero point."""
    at = f"{name}.weight_zero_point"
    if at not in tensors:
        return
    found = tensors[at]
    if offset:
        words = tensor(tensors, at, (torch().int32,), 2)
        rows = tensors[f"{name}.weight_packed"].shape[0]
        shaped(at, words, (-(-rows // WORD), 1), "four rows' zero points to a word")
        found = words.contiguous().view(torch().uint8).flatten()[:rows] ^ offset
    if bool((found != 0).any()):
        raise ArgumentError(at, "not 0", "must be 0: codes have signs")
