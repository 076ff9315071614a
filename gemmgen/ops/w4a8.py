"""GEMMs of FP8 activations and weights of 4 bits: one, and several in one launch."""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..config import Config
from ..ir.dtypes import E4M3
from ..ir.expr import Expr
from ..ir.packed import plain_weights
from ..problem import Problem
from ..runtime.torch_tensors import dtype_of
from .compute import compute
from .front import front
from .groups import segments
from .scaled import coded_problem

MXFP4 = plain_weights(E4M3)  # all that is multiplied without scales of sums


@front
def w4a8_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    weights: str = MXFP4,
    columns: int | None = None,
    out_dtype: str = "bf16",
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[M, N] = epilogue(scale_a * scale_b * (a[M, K] @ B[N, K]^T))`, B weights of 4 bits, which become FP8 exactly.

    a: float8_e4m3fn [M, K], contiguous along K, row stride a multiple of 16 bytes, 16-byte aligned.
    b: uint8 [ceil(N/64), ceil(K/128), bytes of a block], contiguous: `blocks` of what `gemmgen.quant.pack` made of MXFP4 for
    torch.float8_e4m3fn. weights: what they are packed from, by name. columns: N; None: 64 for each row of blocks.
    scale_a: None (1), a float, a float32 CUDA tensor of one element, or float32 [M], one per row, as `gemmgen.ops.quantise_rows` of a whole
    row returns it. scale_b: float32 [N], `factors` of what was packed: a power of two for each row of B, whose groups' exponents are
    counted from there.
    The tensor core sums over the whole of K, in the 14 bits that it has of FP8 (fast accumulation, as `fp8_gemm` with accurate=False).
    out: [M, N] of `out_dtype` ("bf16", "f16", "f32"), contiguous along N, row stride a multiple of 16 bytes; allocated if None. M = 0 returns at
    once.
    epilogue: of the scaled product; it may read no `scale_a` or `scale_b` of its own. config, invariant, weights_ready (of scale_b too), arguments: as in
    `gemmgen.ops.fp8_block_gemm`. Runs on torch's current stream. Raises as that.
    """
    scales = (scale_a, scale_b)
    dtype = dtype_of("a", a, (E4M3,))
    p, given = coded_problem(recipes.W4A8, dtype, scales, weights, out_dtype, epilogue, arguments)
    return compute(
        p, config, a, b, out, given,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


@front
def w4a8_batched_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    weights: str = MXFP4,
    columns: int | None = None,
    out_dtype: str = "bf16",
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`w4a8_gemm` for every g: a float8_e4m3fn [G, M, K], b uint8 [G, ceil(N/64), ceil(K/128), bytes], scale_a per row [G, M],
    scale_b [G, N], out [G, M, N]."""
    scales = (scale_a, scale_b)
    dtype = dtype_of("a", a, (E4M3,))
    p, given = coded_problem(
        recipes.W4A8, dtype, scales, weights, out_dtype, epilogue, arguments, "batched"
    )
    return compute(
        p, config, a, b, out, given,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


@front
def w4a8_masked_gemm(
    a: Any,
    b: Any,
    group_rows: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    weights: str = MXFP4,
    columns: int | None = None,
    expected_rows: int | None = None,
    expected_groups: int | None = None,
    out_dtype: str = "bf16",
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`w4a8_batched_gemm` of each group's first group_rows[g] rows: group_rows, expected_rows, expected_groups as in `masked_gemm`."""
    scales = (scale_a, scale_b)
    dtype = dtype_of("a", a, (E4M3,))
    p, given = coded_problem(
        recipes.W4A8, dtype, scales, weights, out_dtype, epilogue, arguments, "masked"
    )
    return compute(
        p, config, a, b, out, given,
        table=group_rows, expected_rows=expected_rows, expected_groups=expected_groups,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


@front
def w4a8_grouped_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    weights: str = MXFP4,
    columns: int | None = None,
    row_groups: Any = None,
    group_ends: Any = None,
    alignment: int = 128,
    expected_rows: int | None = None,
    expected_groups: int | None = None,
    out_dtype: str = "bf16",
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`grouped_gemm` with weights as in `w4a8_batched_gemm`: a float8_e4m3fn [M, K], scale_a per row [M], scale_b [G, N]; row_groups, group_ends,
    alignment, expected_rows, expected_groups as there."""
    scales = (scale_a, scale_b)
    dtype = dtype_of("a", a, (E4M3,))
    p, given = coded_problem(recipes.W4A8, dtype, scales, weights, out_dtype, epilogue, arguments)
    p, table = segments(p, row_groups, group_ends, alignment)
    return compute(
        p, config, a, b, out, given,
        table=table, expected_rows=expected_rows, expected_groups=expected_groups,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip
