"""GEMMs of 16-bit activations and weights of 4 bits: one, and several in one launch."""

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
def w4a16_gemm(
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
    """`out[M, N] = epilogue(scale_b * (a[M, K] @ B[N, K]^T))`, B weights of 4 bits, with FP32 accumulation.

    a: bfloat16 or float16 [M, K], contiguous along K, row stride a multiple of 16 bytes, 16-byte aligned.
    b: uint8 [ceil(N/64), ceil(K/128), bytes of a block], contiguous: `blocks` of what `gemmgen.quant.pack` made for a's dtype.
    weights: what they are packed from, by name (`Packed.weights`), such as "int4_128_bf16", "int4_64_f16_zeros", "e2m1_32_e8m0" or
    "e2m1_16_e4m3", of float16 "e2m1_32_e8m0_f16" and "e2m1_16_e4m3_f16".
    scale_b: None (1), a float, a float32 CUDA tensor of one element, or float32 [N]: `factors` of what was packed, if it has some: of "e2m1_16_e4m3",
    "e2m1_32_e8m0_f16" and "e2m1_16_e4m3_f16", which these weights are multiplied by.
    columns: N; None: 64 for each row of blocks.
    A weight that is multiplied is (code - zero) * scale, or value * 2^exponent, rounded once to a's dtype (`Packed.numbers`).
    out: [M, N] of `out_dtype` ("bf16", "f16", "f32"; None: a's dtype), contiguous along N, row stride a multiple of 16 bytes; allocated if
    None. M = 0 returns at once.
    config, invariant, weights_ready (of scale_b too), epilogue, arguments: as in `gemmgen.ops.fp8_block_gemm`; the epilogue may read no
    `scale_b` of its own.
    Runs on torch's current stream. Raises as that.
    """
    p, given = halves_problem(recipes.W4A16, a, scale_b, weights, out_dtype, epilogue, arguments)
    return compute(
        p, config, a, b, out, given,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


@front
def w4a16_batched_gemm(
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
    """`out[g] = epilogue(a[g] @ B[g]^T)` for every g: `batched_gemm` with weights as in `w4a16_gemm`.

    a: bfloat16 or float16 [G, M, K]; b: uint8 [G, ceil(N/64), ceil(K/128), bytes]; out: [G, M, N].
    """
    p, given = halves_problem(
        recipes.W4A16, a, scale_b, weights, out_dtype, epilogue, arguments, "batched"
    )
    return compute(
        p, config, a, b, out, given,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


@front
def w4a16_masked_gemm(
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
    """`out[g, :r] = epilogue(a[g, :r] @ B[g]^T)`, r = group_rows[g]: `masked_gemm` with weights as in `w4a16_batched_gemm`."""
    p, given = halves_problem(
        recipes.W4A16, a, scale_b, weights, out_dtype, epilogue, arguments, "masked"
    )
    return compute(
        p, config, a, b, out, given,
        table=group_rows, expected_rows=expected_rows, expected_groups=expected_groups,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


@front
def w4a16_grouped_gemm(
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
    `w4a16_batched_gemm`. a: bfloat16 or float16 [M, K]; row_groups, group_ends, alignment, expected_rows, expected_groups: as there."""
    p, given = halves_problem(recipes.W4A16, a, scale_b, weights, out_dtype, epilogue, arguments)
    p, table = segments(p, row_groups, group_ends, alignment)
    return compute(
        p, config, a, b, out, given,
        table=table, expected_rows=expected_rows, expected_groups=expected_groups,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip
