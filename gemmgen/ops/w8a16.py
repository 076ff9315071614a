"""GEMMs of 16-bit activations and weights of 8 bits: one, and several in one launch."""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..config import Config
from ..ir.expr import Expr
from ..problem import Problem
from .compute import compute
from .front import front
from .groups import segments
from .scaled import halves_problem


@front
def w8a16_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    weights: str,
    scale_b: Any = None,
    columns: int | None = None,
    out_dtype: str | None = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[M, N] = epilogue(scale_b * (a[M, K] @ B[N, K]^T))`, B weights of 8 bits, with FP32 accumulation.

    a: bfloat16 or float16 [M, K], contiguous along K, row stride a multiple of 16 bytes, 16-byte aligned.
    b: uint8 [ceil(N/64), ceil(K/128), 8192], contiguous: `blocks` of what `gemmgen.quant.pack` made for a's dtype.
    weights: what they are packed from, by name (`Packed.weights`): "int8_column_f32" or "e4m3_column_f32", of float16 "int8_column_f32_f16" or
    "e4m3_column_f32_f16".
    scale_b: float32 [N], `factors` of what was packed: the scale of each row of B, of "e4m3_column_f32_f16" times 2^8. None (1), a float and a float32 CUDA tensor
    of one element are taken too.
    columns: N; None: 64 for each row of blocks.
    What is multiplied is the INT8 or FP8 itself, which 16 bits hold exactly ("e4m3_column_f32_f16": 2^-8 of it).
    out: [M, N] of `out_dtype` ("bf16", "f16", "f32"; None: a's dtype), contiguous along N, row stride a multiple of 16 bytes; allocated if
    None. M = 0 returns at once.
    config, invariant, weights_ready (of scale_b too), epilogue, arguments: as in `gemmgen.ops.fp8_block_gemm`; the epilogue may read no
    `scale_b` of its own.
    Runs on torch's current stream. Raises as that.
    """
    p, given = halves_problem(recipes.W8A16, a, scale_b, weights, out_dtype, epilogue, arguments)
    return compute(
        p, config, a, b, out, given,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


@front
def w8a16_batched_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    weights: str,
    scale_b: Any = None,
    columns: int | None = None,
    out_dtype: str | None = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[g] = epilogue(a[g] @ B[g]^T)` for every g: `batched_gemm` with weights as in `w8a16_gemm`.

    a: bfloat16 or float16 [G, M, K]; b: uint8 [G, ceil(N/64), ceil(K/128), 8192]; scale_b: [G, N]; out: [G, M, N].
    """
    p, given = halves_problem(
        recipes.W8A16, a, scale_b, weights, out_dtype, epilogue, arguments, "batched"
    )
    return compute(
        p, config, a, b, out, given,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


@front
def w8a16_masked_gemm(
    a: Any,
    b: Any,
    group_rows: Any,
    out: Any = None,
    *,
    weights: str,
    scale_b: Any = None,
    columns: int | None = None,
    expected_rows: int | None = None,
    expected_groups: int | None = None,
    out_dtype: str | None = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[g, :r] = epilogue(a[g, :r] @ B[g]^T)`, r = group_rows[g]: `masked_gemm` with weights as in `w8a16_batched_gemm`."""
    p, given = halves_problem(
        recipes.W8A16, a, scale_b, weights, out_dtype, epilogue, arguments, "masked"
    )
    return compute(
        p, config, a, b, out, given,
        table=group_rows, expected_rows=expected_rows, expected_groups=expected_groups,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


@front
def w8a16_grouped_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    weights: str,
    scale_b: Any = None,
    columns: int | None = None,
    row_groups: Any = None,
    group_ends: Any = None,
    alignment: int = 128,
    expected_rows: int | None = None,
    expected_groups: int | None = None,
    out_dtype: str | None = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[i] = epilogue(a[i] @ B[g]^T)` for every row i, g the group that row i is in: `grouped_gemm` with weights as in
    `w8a16_batched_gemm`. a: bfloat16 or float16 [M, K]; row_groups, group_ends, alignment, expected_rows, expected_groups: as there."""
    p, given = halves_problem(recipes.W8A16, a, scale_b, weights, out_dtype, epilogue, arguments)
    p, table = segments(p, row_groups, group_ends, alignment)
    return compute(
        p, config, a, b, out, given,
        table=table, expected_rows=expected_rows, expected_groups=expected_groups,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip
