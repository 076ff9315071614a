"""FP8 operands with their scales, by DeepGEMM's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ... import ops
from ...errors import ArgumentError
from ...ir.dtypes import FLOATS
from ...runtime.torch_tensors import dtype_of
from .layout import ceil_div
from .operands import Pair
from .ue8m0 import PACKED, pack_ue8m0_to_int

BLOCK = 128


def per_token_cast_to_fp8(
    x: Any, use_ue8m0: bool, gran_k: int = BLOCK, use_packed_ue8m0: bool = False
) -> Pair:
    """x [M, K] as float8_e4m3fn [M, K] and float32 scales [M, ceil(K/128)], contiguous along M.

    use_ue8m0: scales are powers of two. gran_k: 128. use_packed_ue8m0: scales are int32 [M, K/512], as
    `pack_ue8m0_to_int` makes them; no kernel of Hopper's reads those. As `gemmgen.ops.quantise_rows`.
    """
    _check(x, gran_k)
    if use_packed_ue8m0 and not use_ue8m0:
        raise ArgumentError("use_packed_ue8m0", use_packed_ue8m0, "must be False unless use_ue8m0")
    if use_packed_ue8m0 and ceil_div(x.shape[1], BLOCK) % PACKED:
        allowed = f"must have a multiple of {PACKED} blocks of {BLOCK} columns"
        raise ArgumentError("x shape", tuple(x.shape), allowed)
    q, scales = ops.quantise_rows(x, power_of_two=use_ue8m0)
    return q, pack_ue8m0_to_int(scales) if use_packed_ue8m0 else scales


def per_channel_cast_to_fp8(x: Any, use_ue8m0: bool, gran_k: int = BLOCK) -> Pair:
    """x [K, N] as float8_e4m3fn [K, N] and float32 scales [K/128, N], one per column and 128 rows; K a
    multiple of 128. The rest as in `per_token_cast_to_fp8`."""
    _check(x, gran_k)
    if x.shape[0] != ceil_div(x.shape[0], BLOCK) * BLOCK:
        raise ArgumentError("x rows", x.shape[0], f"must be a multiple of {BLOCK}")
    q, scales = ops.quantise_rows(x.mT, power_of_two=use_ue8m0)
    return q.mT.contiguous(), scales.mT


def per_block_cast_to_fp8(x: Any, use_ue8m0: bool, gran_k: int = BLOCK) -> Pair:
    """x [N, K] as float8_e4m3fn [N, K] and float32 scales [ceil(N/128), ceil(K/128)]. The rest as in
    `per_token_cast_to_fp8`; as `gemmgen.ops.quantise_blocks`."""
    _check(x, gran_k)
    q, scales = ops.quantise_blocks(x, power_of_two=use_ue8m0)
    return q, scales


def per_custom_dims_cast_to_fp8(x: Any, dims: Sequence[int], use_ue8m0: bool) -> Pair:
    """x, of any shape, as float8_e4m3fn of that shape, and float32 scales: one for each index of `dims`, of their sides that
    are not 1. dims: some of x's dimensions, not all. As `gemmgen.ops.quantise_rows`. Raises ArgumentError."""
    dtype_of("x", x, FLOATS)
    kept = sorted({*dims} if isinstance(dims, list | tuple) else {-1})
    if len(kept) >= x.dim() or not all(isinstance(i, int) and 0 <= i < x.dim() for i in kept):
        allowed = f"must be some of the dimensions 0 to {x.dim() - 1}, not all"
        raise ArgumentError("dims", dims, allowed)
    shared = [i for i in range(x.dim()) if i not in kept]
    turned = x.permute(*kept, *shared)
    count = math.prod(turned.shape[: len(kept)])
    flat = turned.reshape(count, -1)
    q, scales = ops.quantise_rows(flat, block=None, power_of_two=use_ue8m0)
    back = sorted(range(x.dim()), key=[*kept, *shared].__getitem__)
    sides = [n for n in turned.shape[: len(kept)] if n != 1]
    return q.view(turned.shape).permute(back).contiguous(), scales.view(sides)


def _check(x: Any, gran_k: int) -> None:
    if gran_k != BLOCK:
        raise ArgumentError("gran_k", gran_k, f"must be {BLOCK} on Hopper")
    dtype_of("x", x, FLOATS)
    if x.dim() != 2:
        raise ArgumentError("x shape", tuple(x.shape), "must have two dimensions")
