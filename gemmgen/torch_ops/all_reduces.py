"""Operators of a process group whose ranks all get the sum of all, for few rows: see collectives."""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..ir.collectives import ALL_REDUCE
from ..ir.dtypes import E4M3
from ..problem import Problem
from ..runtime.torch_tensors import torch
from .collectives import SHARING, Collective
from .operators import HALVES

torch_ = torch()  # a constant to a compiler, which would trace the function's imports


def gemm_all_reduce(
    a: Any,
    b: Any,
    group_name: str,
    *,
    layout: str = Problem.layout,
    epilogue: str = "none",
    out_dtype: str | None = None,
    wire: str | None = None,
    fuse: bool | None = None,
    config: str = "",
    **arguments: Any,
) -> Any:
    """`epilogue(sum over ranks of A @ B)` on every rank, with the same bits: [M, N], a new tensor. Without gradients.

    a: bfloat16 or float16 [M, K], b: the same dtype [N, K], of this rank's own K. epilogue: applied once, to the whole sum; arguments: what it reads, of all M rows, the same on
    all ranks. wire: what all sums are rounded to before they travel. fuse: one launch of each rank (docs/adr/0057-all-reduce.md), or the plain GEMM and torch's all-reduce: None: what is expected
    to take less. The rest is as of `gemm_reduce_scatter`.
    """
    return torch_.ops.gemmgen.gemm_all_reduce(
        a,
        b,
        group_name,
        layout=layout,
        epilogue=epilogue,
        out_dtype=out_dtype,
        wire=wire,
        fuse=fuse,
        config=config,
        **arguments,
    )


def fp8_block_gemm_all_reduce(
    a: Any,
    scale_a: Any,
    b: Any,
    scale_b: Any,
    group_name: str,
    *,
    scale_a_layout: str,
    epilogue: str = "none",
    out_dtype: str = "bf16",
    wire: str | None = None,
    fuse: bool | None = None,
    config: str = "",
    **arguments: Any,
) -> Any:
    """`gemm_all_reduce` of FP8 with block scales.

    a: float8_e4m3fn [M, K], scale_a: float32 [M, ceil(K/128)]; b [N, K], scale_b [ceil(N/128), ceil(K/128)], of this rank's own K; scale_a_layout: "mn" or
    "row", as of `gemmgen.ops.fp8_block_gemm`; one launch copies "row".
    """
    return torch_.ops.gemmgen.fp8_block_gemm_all_reduce(
        a,
        scale_a,
        b,
        scale_b,
        group_name,
        scale_a_layout=scale_a_layout,
        epilogue=epilogue,
        out_dtype=out_dtype,
        wire=wire,
        fuse=fuse,
        config=config,
        **arguments,
    )


COLLECTIVES = (
    *SHARING,
    Collective(function=gemm_all_reduce, operands=HALVES, collective=ALL_REDUCE, plain="gemm"),
    Collective(
        function=fp8_block_gemm_all_reduce,
        family=recipes.FP8_BLOCK,
        operands=(E4M3,),
        collective=ALL_REDUCE,
        plain="fp8_block_gemm",
    ),
)
