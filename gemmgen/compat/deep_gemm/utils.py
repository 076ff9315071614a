"""The names that DeepGEMM's programs import from `deep_gemm.utils`."""

from __future__ import annotations

from typing import Any

from .casts import per_block_cast_to_fp8, per_channel_cast_to_fp8, per_token_cast_to_fp8
from .layout import align, ceil_div, get_mn_major_tma_aligned_tensor, get_tma_aligned_size
from .refused import REASONS, refusal
from .settings import (
    get_mk_alignment_for_contiguous_layout,
    get_theoretical_mk_alignment_for_contiguous_layout,
    set_mk_alignment_for_contiguous_layout,
)

get_m_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout
get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout

__all__ = [
    "align",
    "ceil_div",
    "get_k_alignment_for_contiguous_layout",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_tensor",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "get_tma_aligned_size",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_token_cast_to_fp8",
    "set_mk_alignment_for_contiguous_layout",
]


def __getattr__(name: str) -> Any:
    if name in REASONS:
        return refusal(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
