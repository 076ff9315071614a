"""Batched GEMMs that add up each product in the order of K at every shape, also where few tiles would divide K:
the FP32 sums then have the bits that one pass over K gives. For the layers that stand for other libraries.
"""

from __future__ import annotations

from typing import Any

from ..ir.expr import Expr
from ..problem import Problem
from .calls import block_scales, operand_shape, run
from .front import front
from .grouped import dense_problem, fp8_block_problem
from .told import Groups


@front
def batched_gemm(
    a: Any,
    b: Any,
    out: Any,
    *,
    layout: str,
    out_dtype: str,
    epilogue: Expr = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """As `gemmgen.ops.batched_gemm`, K undivided."""
    p = dense_problem(a, "batched", layout, out_dtype, epilogue)
    shape = operand_shape(p, a, b)
    groups = Groups(count=a.shape[0], whole_k=True)
    return run(p, None, a, b, out, shape, {}, {}, arguments, groups=groups)


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
    epilogue: Expr = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """As `gemmgen.ops.fp8_block_batched_gemm`, K undivided."""
    p = fp8_block_problem("batched", out_dtype, epilogue)
    shape = operand_shape(p, a, b)
    scales, values = block_scales(a, scale_a, scale_a_layout, b, scale_b)
    groups = Groups(count=a.shape[0], whole_k=True)
    return run(p, None, a, b, out, shape, scales, values, arguments, groups=groups)
