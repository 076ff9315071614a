"""GEMMs of FP8 activations scaled for each 128 of K and weights of 4 bits: one, and several in one launch."""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..config import Config
from ..ir.dtypes import E4M3, DType
from ..ir.expr import Expr
from ..problem import Problem
from ..runtime.torch_tensors import dtype_of
from .compute import compute, of_blocks
from .front import front
from .groups import segments
from .scaled import coded_problem
from .w4a8 import MXFP4


@front
def w4a8_block_gemm(
    a: Any,
    scale_a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a_layout: str,
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
    """`out[M, N] = epilogue(scale_b * ((a * scale_a)[M, K] @ B[N, K]^T))`, B weights of 4 bits, which become FP8 exactly, with FP32 promotion every 128
    of K.

    a: float8_e4m3fn [M, K], contiguous along K, row stride a multiple of 16 bytes, 16-byte aligned.
    scale_a: float32 [M, ceil(K/128)], one per row and 128 of K, as `gemmgen.ops.quantise_rows` returns it. `scale_a_layout` says how it lies: "mn",
    contiguous along M with a column stride that is a multiple of 4 elements, read in place; or "row", any strides, copied to "mn" first.
    b, weights, columns, scale_b: as in `gemmgen.ops.w4a8_gemm`, whose sums over K are the tensor core's own, in 14 bits; here those of 128. Or of INT4 that
    `gemmgen.quant.pack` packed for torch.float8_e4m3fn, "int4_128_f32", whose scales lie in b and multiply these sums: it has no factors.
    out, out_dtype, epilogue, config, invariant, weights_ready (of scale_b too), arguments: as there. Runs on torch's current stream. Raises as that.
    """
    p, given = coded_problem(*_of(a), (None, scale_b), weights, out_dtype, epilogue, arguments)
    return compute(
        p, config, a, b, out, given, of_blocks(scale_a, None, scale_a_layout),
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


@front
def w4a8_block_batched_gemm(
    a: Any,
    scale_a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a_layout: str,
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
    """`w4a8_block_gemm` for every g: a float8_e4m3fn [G, M, K], scale_a [G, M, ceil(K/128)], b uint8 [G, ceil(N/64), ceil(K/128), bytes],
    scale_b [G, N], out [G, M, N]."""
    p, given = coded_problem(
        *_of(a), (None, scale_b), weights, out_dtype, epilogue, arguments, "batched"
    )
    return compute(
        p, config, a, b, out, given, of_blocks(scale_a, None, scale_a_layout),
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


@front
def w4a8_block_masked_gemm(
    a: Any,
    scale_a: Any,
    b: Any,
    group_rows: Any,
    out: Any = None,
    *,
    scale_a_layout: str,
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
    """`w4a8_block_batched_gemm` of each group's first group_rows[g] rows: group_rows, expected_rows, expected_groups as in `masked_gemm`."""
    p, given = coded_problem(
        *_of(a), (None, scale_b), weights, out_dtype, epilogue, arguments, "masked"
    )
    return compute(
        p, config, a, b, out, given, of_blocks(scale_a, None, scale_a_layout),
        table=group_rows, expected_rows=expected_rows, expected_groups=expected_groups,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


@front
def w4a8_block_grouped_gemm(
    a: Any,
    scale_a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a_layout: str,
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
    """`grouped_gemm` with weights as in `w4a8_block_batched_gemm`: a float8_e4m3fn [M, K], scale_a [M, ceil(K/128)], scale_b [G, N]; row_groups,
    group_ends, alignment, expected_rows, expected_groups as there."""
    p, given = coded_problem(*_of(a), (None, scale_b), weights, out_dtype, epilogue, arguments)
    p, table = segments(p, row_groups, group_ends, alignment)
    return compute(
        p, config, a, b, out, given, of_blocks(scale_a, None, scale_a_layout),
        table=table, expected_rows=expected_rows, expected_groups=expected_groups,
        invariant=invariant, weights_ready=weights_ready, columns=columns,
    )  # fmt: skip


def _of(a: Any) -> tuple[str, DType]:
    """The family, and the dtype that `a` must have."""
    return recipes.W4A8_BLOCK, dtype_of("a", a, (E4M3,))
