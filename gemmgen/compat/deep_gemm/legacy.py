"""`deep_gemm.legacy`: the names of DeepGEMM's Triton kernels for A100, over gemmgen's kernels for Hopper.

Of those that gather rows of an operand while they multiply there are the names: their tables say less than gemmgen's gathering
GEMM asks for, and no operand is copied here.
"""

from __future__ import annotations

from typing import Any

from gemmgen.compat.deep_gemm.grouped import (
    m_grouped_bf16_gemm_nn_contiguous,
    m_grouped_bf16_gemm_nt_contiguous,
)
from gemmgen.compat.deep_gemm.refused import LEGACY, refusals

__all__ = ["m_grouped_bf16_gemm_nn_contiguous_tl", "m_grouped_bf16_gemm_nt_contiguous_tl", *LEGACY]


def m_grouped_bf16_gemm_nt_contiguous_tl(a: Any, b: Any, d: Any, m_indices: Any) -> None:
    """`m_grouped_bf16_gemm_nt_contiguous`, whose `grouped_layout` is m_indices. Rows of no group come out as 0; a caller
    of the Triton kernel clears them."""
    m_grouped_bf16_gemm_nt_contiguous(a, b, d, m_indices)


def m_grouped_bf16_gemm_nn_contiguous_tl(a: Any, b: Any, d: Any, m_indices: Any) -> None:
    """`m_grouped_bf16_gemm_nt_contiguous_tl` of `b` transposed, [G, K, N]."""
    m_grouped_bf16_gemm_nn_contiguous(a, b, d, m_indices)


__getattr__ = refusals(__name__, LEGACY)
