"""MXFP4 weights, as gpt-oss stores its experts: blocks of 32 codes in 16 bytes, and exponents."""

from __future__ import annotations

from ..errors import ArgumentError
from ..formats import MXFP4
from ..formats.numbers import E8M0_NAN
from ..runtime.torch_tensors import torch
from .named import Tensors, shaped, tensor
from .quantised import Quantised

BYTES = MXFP4.group // 2


def mxfp4(tensors: Tensors, name: str) -> Quantised:
    """The weights `name` in MXFP4: codes of E2M1 times 2^(exponent - 127), one for 32 of K.

    They are `name`_blocks, uint8 [..., N, K / 32, 16], with the code of an even column in the low four bits, and `name`_scales,
    uint8 [..., N, K / 32] (src/transformers/integrations/mxfp4.py of github.com/huggingface/transformers); gpt-oss has [experts, ...]. Its gate_up_proj has
    gate and up in alternating rows, which stay where they are.

    Returns weights [..., N, K] over the memory of contiguous tensors. Raises ArgumentError naming the tensor: one that is missing, of another
    dtype or shape, and an exponent of 255, which is NaN.
    """
    at, of = f"{name}_blocks", f"{name}_scales"
    blocks = tensor(tensors, at, (torch().uint8,), 3, more=True)
    scales = tensor(tensors, of, (torch().uint8,), blocks.dim() - 1)
    shaped(at, blocks, (*blocks.shape[:-1], BYTES), "32 codes to a block")
    shaped(of, scales, tuple(blocks.shape[:-1]), "an exponent for each block")
    if bool((scales == E8M0_NAN).any()):
        raise ArgumentError(of, E8M0_NAN, "must be below 255, which is NaN")
    rows = blocks.contiguous().view(*blocks.shape[:-2], -1)
    return Quantised(format=MXFP4, codes=rows, scales=scales.contiguous())
