"""Batched GEMMs that add up each product in the order of K at every shape, also where few tiles would divide K:
the FP32 sums then have the bits that one pass over K gives. For the layers that stand for other libraries.
"""

from __future__ import annotations

from typing import Any

from ..ir.expr import Expr
from ..problem import Problem
from .compute import compute, of_blocks
from .front import front
from .grouped import dense_problem, fp8_block_problem


@front
def batched_gemm(
    a: Any,
    b: Any,
    out: Any,
    *,
    layout: str,
    out_dtype: str,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """As `gemmgen.ops.batched_gemm`, K undivided."""
    p = dense_problem(a, "batched", layout, out_dtype, epilogue)
    return compute(p, None, a, b, out, arguments, whole_k=True)


@front
def fp8_block_batched_gemm(
    a: Any,
    scale_a: Any,
    b: Any,
    scale_b: Any,
    out: Any,
    *,
    scale_a_layout: str,
    out_dtype: str,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """As `gemmgen.ops.fp8_block_batched_gemm`, K undivided."""
    p = fp8_block_problem("batched", out_dtype, epilogue)
    scales = of_blocks(scale_a, scale_b, scale_a_layout)
    return compute(p, None, a, b, out, arguments, scales, whole_k=True)
