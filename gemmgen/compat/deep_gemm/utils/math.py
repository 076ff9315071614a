"""`deep_gemm.utils.math`: sizes, and FP8 operands with their scales."""

from __future__ import annotations

from gemmgen.compat.deep_gemm.casts import (
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_token_cast_to_fp8,
)
from gemmgen.compat.deep_gemm.layout import align, ceil_div
from gemmgen.compat.deep_gemm.refused import refusals

__all__ = [
    "align",
    "ceil_div",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_token_cast_to_fp8",
]
__getattr__ = refusals(__name__)
