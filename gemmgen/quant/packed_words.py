"""INT4 of compressed-tensors, as llm-compressor writes it: rows in words of eight neighbouring columns."""

from __future__ import annotations

from typing import Any

from ..runtime.torch_tensors import torch
from .gptq import in_order
from .named import Tensors, finite, floats, int4_of, shaped, tensor
from .quantised import Quantised, words

WORD = 8  # codes of an int32
ZERO = 8


def int4_packed(tensors: Tensors, name: str) -> Quantised:
    """The weights `name` in INT4, the format "pack-quantized" of compressed-tensors with 4 bits: a weight is (code - zero) * scale.

    They are `name`.weight_packed, int32 [N, ceil(K / 8)], the code of the first column in the lowest four bits, `name`.weight_shape, [N, K],
    `name`.weight_scale, float16, bfloat16 or float32 [N, K / g], where g is 32, 64, 128 or K, and, if they are there, `name`.weight_zero_point, int32
    [ceil(N / 8), K / g], the zero of the first row in the lowest four bits, and `name`.weight_g_idx, integers [K]: the group of each column.

    Returns weights [N, K] on the device of the tensors, codes over the memory of contiguous words, without zeros if all of them are 8. Raises
    ArgumentError naming the tensor: one that is missing, of another dtype or shape, a scale that is no finite number, and `weight_g_idx` that is not k / g
    (actorder).
    """
    at, of, by = (f"{name}.weight_{x}" for x in ("packed", "shape", "scale"))
    packed = tensor(tensors, at, (torch().int32,), 2)
    sides = tensor(tensors, of, (torch().int32, torch().int64), 1)
    shaped(of, sides, (2,), "rows and columns")
    n, k = map(int, sides.tolist())
    shaped(at, packed, (n, -(-k // WORD)), f"eight codes of {k} columns to a word")
    scales = tensor(tensors, by, floats(), 2)
    shaped(by, scales, (n, scales.shape[1]), "a scale for each row and group")
    zeros = _zeros(tensors, f"{name}.weight_zero_point", n, scales.shape[1])
    form = int4_of(by, k, scales, zeros=zeros is not None, along=1)
    finite(by, scales)
    in_order(tensors, f"{name}.weight_g_idx", k, form.group_of(k))
    octets = packed.contiguous().view(torch().uint8)[:, : k // 2]
    return Quantised(
        format=form, codes=octets.contiguous(), scales=scales.contiguous(), zeros=zeros
    )


def _zeros(tensors: Tensors, at: str, rows: int, groups: int) -> Any:
    """uint8 [N, groups]; None where all are 8, or none are stored."""
    if at not in tensors:
        return None
    found = tensor(tensors, at, (torch().int32,), 2)
    shaped(at, found, (-(-rows // WORD), groups), "eight rows' zeros to a word")
    zeros = words(found).permute(0, 2, 1).reshape(-1, groups)[:rows]
    return None if bool((zeros == ZERO).all()) else zeros.contiguous()
