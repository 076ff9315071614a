"""`deep_gemm.utils.math`: sizes, and FP8 operands with their scales."""

from __future__ import annotations

from gemmgen.compat.deep_gemm.casts import (
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_custom_dims_cast_to_fp8,
    per_token_cast_to_fp8,
)
from gemmgen.compat.deep_gemm.layout import align, ceil_div
from gemmgen.compat.deep_gemm.refused import refusals
from gemmgen.compat.deep_gemm.ue8m0 import (
    ceil_to_ue8m0,
    pack_ue8m0_to_int,
    unpack_ue8m0_from_int,
)

__all__ = [
    "align",
    "ceil_div",
    "ceil_to_ue8m0",
    "pack_ue8m0_to_int",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_custom_dims_cast_to_fp8",
    "per_token_cast_to_fp8",
    "unpack_ue8m0_from_int",
]
__getattr__ = refusals(__name__)
