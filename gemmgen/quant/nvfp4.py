"""NVFP4 weights: 16 codes that share a scale of E4M3, and a scale of the tensor, by the names of ModelOpt and of compressed-tensors."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ArgumentError
from ..formats import NVFP4
from ..runtime.torch_tensors import torch
from .named import Tensors, shaped, tensor
from .quantised import Quantised


def nvfp4(tensors: Tensors, name: str) -> Quantised:
    """The weights `name` in NVFP4, as ModelOpt names them: codes of E2M1 times their group's scale times the tensor's.

    They are `name`.weight, uint8 [..., N, K / 2], with the code of an even column in the low four bits, `name`.weight_scale, float8_e4m3fn
    [..., N, K / 16], and `name`.weight_scale_2, float32, one number.

    Returns weights [..., N, K] over the memory of contiguous tensors. Raises ArgumentError naming the tensor: one that is missing, of another
    dtype or shape, and a tensor's scale that is no finite number.
    """
    scale = _number(tensors, f"{name}.weight_scale_2")
    return _weights(tensors, f"{name}.weight", f"{name}.weight_scale", scale)


def nvfp4_packed(tensors: Tensors, name: str) -> Quantised:
    """The same as compressed-tensors names it ("nvfp4-pack-quantized"): `name`.weight_packed, `name`.weight_scale, and
    `name`.weight_global_scale, which scales are divided by: its inverse is rounded to float32. Raises as `nvfp4`, and for a divisor of 0."""
    at = f"{name}.weight_global_scale"
    divisor = _number(tensors, at)
    scale = float(torch().tensor(divisor).reciprocal())
    if not math.isfinite(scale):
        raise ArgumentError(at, divisor, "must have a finite inverse")
    return _weights(tensors, f"{name}.weight_packed", f"{name}.weight_scale", scale)


def _weights(tensors: Tensors, at: str, of: str, scale: float) -> Quantised:
    codes = tensor(tensors, at, (torch().uint8,), 2, more=True)
    scales = tensor(tensors, of, (torch().float8_e4m3fn,), codes.dim())
    *rows, half = codes.shape
    columns = 2 * half
    if columns % NVFP4.group:
        allowed = f"{columns} columns must be groups of {NVFP4.group}"
        raise ArgumentError(f"{at} shape", tuple(codes.shape), allowed)
    shaped(of, scales, (*rows, columns // NVFP4.group), f"a scale for each {NVFP4.group} columns")
    if not bool(scales.float().isfinite().all()):
        raise ArgumentError(of, math.nan, "must be finite numbers")
    whole = (codes.contiguous(), scales.contiguous())
    return Quantised(format=NVFP4, codes=whole[0], scales=whole[1], tensor_scale=scale)


def _number(tensors: Tensors, at: str) -> float:
    """A tensor of one element, as it is stored."""
    found: Any = tensor(tensors, at, (torch().float32,), 0, more=True)
    if found.numel() != 1:
        raise ArgumentError(f"{at} shape", tuple(found.shape), "must be one number")
    number = float(found)
    if not math.isfinite(number):
        raise ArgumentError(at, number, "must be finite")
    return number
