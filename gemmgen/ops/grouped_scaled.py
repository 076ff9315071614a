"""Several FP8 or INT8 GEMMs in one launch, scaled per tensor, row or column once they are summed.

Everywhere: operands, tables, `out`, `scale_out` and what an epilogue reads are as in `gemmgen.ops.grouped`,
layout "nt"; the rest is as in `fp8_gemm` and `int8_gemm`, INT8's K of at most 131071 too. scale_a and scale_b:
None (1), a float, a float32 CUDA tensor of one element (both for all groups), or one per row and per column,
float32 and dense: scale_a [G, M] where A has groups, else [M]; scale_b [G, N].
"""

from __future__ import annotations

from typing import Any

from ..config import Config
from ..ir.expr import Expr
from ..problem import Problem
from .compute import compute
from .front import front
from .groups import segments
from .scaled import fp8_problem, int8_problem


@front
def fp8_batched_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    accurate: bool = True,
    out_dtype: str = "bf16",
    scale_out: Any = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[g] = scale_a[g] * scale_b[g] * (a[g] @ b[g]^T)` for every g.

    a: float8_e4m3fn or float8_e5m2 [G, M, K]; b: either of them [G, N, K]; out: [G, M, N] of `out_dtype`
    ("bf16", "f16", "f32", "e4m3"). M = 0 or G = 0 returns at once.
    """
    scales = (scale_a, scale_b)
    p, given = fp8_problem(a, b, scales, accurate, out_dtype, epilogue, arguments, "batched")
    return compute(
        p, config, a, b, out, given,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def fp8_masked_gemm(
    a: Any,
    b: Any,
    group_rows: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    accurate: bool = True,
    expected_rows: int | None = None,
    expected_groups: int | None = None,
    out_dtype: str = "bf16",
    scale_out: Any = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`masked_gemm` of FP8 operands: a float8_e4m3fn or float8_e5m2 [G, Mmax, K], b either of them [G, N, K],
    scale_a per row [G, Mmax]; group_rows int32 [G]; out [G, Mmax, N] as in `fp8_batched_gemm`."""
    scales = (scale_a, scale_b)
    p, given = fp8_problem(a, b, scales, accurate, out_dtype, epilogue, arguments, "masked")
    return compute(
        p, config, a, b, out, given,
        table=group_rows, expected_rows=expected_rows, expected_groups=expected_groups,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def fp8_grouped_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    accurate: bool = True,
    row_groups: Any = None,
    group_ends: Any = None,
    alignment: int = 128,
    expected_rows: int | None = None,
    expected_groups: int | None = None,
    out_dtype: str = "bf16",
    scale_out: Any = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`grouped_gemm` of FP8 operands: a float8_e4m3fn or float8_e5m2 [M, K], b either of them [G, N, K],
    scale_a per row [M]; row_groups int32 [M] or group_ends int32 [G]; out [M, N] as in `fp8_batched_gemm`."""
    scales = (scale_a, scale_b)
    p, given = fp8_problem(a, b, scales, accurate, out_dtype, epilogue, arguments)
    p, table = segments(p, row_groups, group_ends, alignment)
    return compute(
        p, config, a, b, out, given,
        table=table, expected_rows=expected_rows, expected_groups=expected_groups,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def int8_batched_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    out_dtype: str = "s32",
    scale_out: Any = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[g] = scale_a[g] * scale_b[g] * (a[g] @ b[g]^T)` for every g, summed exactly in INT32.

    a: int8 [G, M, K]; b: int8 [G, N, K]; out: [G, M, N] of `out_dtype` ("s32", without scales and epilogue;
    "bf16", "f16", "f32", "e4m3"). M = 0 or G = 0 returns at once.
    """
    p, given = int8_problem((scale_a, scale_b), out_dtype, epilogue, arguments, "batched")
    return compute(
        p, config, a, b, out, given,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def int8_masked_gemm(
    a: Any,
    b: Any,
    group_rows: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    expected_rows: int | None = None,
    expected_groups: int | None = None,
    out_dtype: str = "s32",
    scale_out: Any = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`masked_gemm` of INT8 operands: a int8 [G, Mmax, K], b int8 [G, N, K], scale_a per row [G, Mmax];
    group_rows int32 [G]; out [G, Mmax, N] as in `int8_batched_gemm`."""
    p, given = int8_problem((scale_a, scale_b), out_dtype, epilogue, arguments, "masked")
    return compute(
        p, config, a, b, out, given,
        table=group_rows, expected_rows=expected_rows, expected_groups=expected_groups,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def int8_grouped_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    row_groups: Any = None,
    group_ends: Any = None,
    alignment: int = 128,
    expected_rows: int | None = None,
    expected_groups: int | None = None,
    out_dtype: str = "s32",
    scale_out: Any = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`grouped_gemm` of INT8 operands: a int8 [M, K], b int8 [G, N, K], scale_a per row [M]; row_groups int32
    [M] or group_ends int32 [G]; out [M, N] as in `int8_batched_gemm`."""
    p, given = int8_problem((scale_a, scale_b), out_dtype, epilogue, arguments)
    p, table = segments(p, row_groups, group_ends, alignment)
    return compute(
        p, config, a, b, out, given,
        table=table, expected_rows=expected_rows, expected_groups=expected_groups,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip
