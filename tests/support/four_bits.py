"""Weights of 4 bits as torch tensors: formats of each kind, drawn and packed."""

from __future__ import annotations

import torch

from gemmgen import formats, quant

BF16, F16 = torch.bfloat16, torch.float16
# By name, with the dtype of what is multiplied by them.
FORMS = {
    "int4": (formats.int4(128, "bf16"), BF16),
    "zeros": (formats.int4(64, "f16", zeros=True), F16),
    "mxfp4": (formats.MXFP4, BF16),
    "nvfp4": (formats.NVFP4, BF16),
    "mxfp4 of fp16": (formats.MXFP4, F16),
    "nvfp4 of fp16": (formats.NVFP4, F16),
}


def drawn(form, *shape):
    """Of size 1 / sqrt(K): products with numbers of size 1 have size 1."""
    return quant.of(torch.randn(*shape) * shape[-1] ** -0.5, form)


def packed(form, dtype, *shape):
    return quant.pack(drawn(form, *shape), dtype)


def exact(weights):
    """float64 [..., N, K]: what a kernel multiplies by, times what its rows lack."""
    numbers = weights.wide()
    return numbers if weights.factors is None else numbers * weights.factors.double()[..., None]
