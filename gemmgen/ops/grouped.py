"""Several GEMMs in one launch: batched, and for mixtures of experts grouped and masked.

Everywhere: operands are contiguous along their last dimension, their other strides multiples of 16 bytes
(rows and groups may be padded, views permuted), 16-byte aligned. `layout` is as in `gemm`: with "nn", b is
[G, K, N]. Group tables are int32 CUDA tensors and are read on the
device only, so a launch can be captured in a CUDA graph and replayed with other tables. The rest
(`scale_a_layout`, `out_dtype`, `scale_out`, `config`, `invariant`, `weights_ready`, `epilogue`, the result, errors) is as in `gemmgen.ops`; what is ready is
loaded ahead in batches only, for elsewhere a table on the device says which group's weights come first; an epilogue's
vectors per column are [G, N], per row [G, M] where A is, else [M]. scale_out, for out_dtype "e4m3", has D's
leading group dimension, if D has one; rows of no group that come out as 0 have the scale 1e-4 / 448.
"""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..config import Config
from ..ir.dtypes import BF16, E4M3, F16, DType
from ..ir.expr import Expr
from ..problem import Problem
from ..runtime.torch_tensors import dtype_of
from .calls import output_dtype
from .compute import compute, of_blocks
from .front import front
from .groups import segments
from .indexed import taken


@front
def batched_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    layout: str = Problem.layout,
    out_dtype: str | None = None,
    scale_out: Any = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[g] = epilogue(a[g] @ b[g]^T)` for every g, with FP32 accumulation.

    a: bfloat16 or float16 [G, M, K]; b: the same dtype [G, N, K]; out: [G, M, N] of `out_dtype` ("bf16",
    "f16", "f32"; None: a's), allocated if None. M = 0 or G = 0 returns at once.
    """
    p = dense_problem(a, "batched", layout, out_dtype, epilogue)
    return compute(
        p, config, a, b, out, arguments,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def masked_gemm(
    a: Any,
    b: Any,
    group_rows: Any,
    out: Any = None,
    *,
    expected_rows: int | None = None,
    expected_groups: int | None = None,
    layout: str = Problem.layout,
    out_dtype: str | None = None,
    scale_out: Any = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[g, :r] = epilogue(a[g, :r] @ b[g]^T)`, r = group_rows[g]; the other rows stay untouched.

    a: bfloat16 or float16 [G, Mmax, K]; b: the same dtype [G, N, K]; group_rows: int32 [G], from 0 to
    Mmax; out: [G, Mmax, N] as in `batched_gemm`. Tiles of no valid row cost nothing.
    expected_rows, expected_groups: what the cost model takes for a group's rows (None: Mmax), and for how many groups have any
    (None: G). Both choose the config, and bound nothing.
    """
    p = dense_problem(a, "masked", layout, out_dtype, epilogue)
    return compute(
        p, config, a, b, out, arguments,
        table=group_rows, expected_rows=expected_rows, expected_groups=expected_groups,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def grouped_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    row_groups: Any = None,
    group_ends: Any = None,
    alignment: int = 128,
    rows: Any = None,
    top: int = 1,
    expected_rows: int | None = None,
    expected_groups: int | None = None,
    layout: str = Problem.layout,
    out_dtype: str | None = None,
    scale_out: Any = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[i] = epilogue(a[i] @ b[g]^T)` for every row i, g the group that row i is in.

    a: bfloat16 or float16 [M, K]; b: the same dtype [G, N, K]; out: [M, N] as in `batched_gemm`. Which
    rows are whose is given by one of
    row_groups: int32 [M], the group of each row, -1 for none: such rows of out are 0. Rows i to
    i + alignment - 1, i a multiple of `alignment`, are in one group or in none.
    group_ends: int32 [G], the row after the last of each group; each starts at the first multiple of
    `alignment` from the end of the one before. Rows between two groups stay untouched.
    alignment: 128 or 64; with group_ends also 8, 4 or 1, so that few rows or none lie between two groups (at least 8 for layouts of a turned a, and 4 where blocks
    have scales). With group_ends, expected_rows and expected_groups: what the cost model takes for the rows of a group that has
    any (None: M divided by so many groups), and for how many have (None: G). Both choose the config, and bound nothing.
    rows: with group_ends, int32 [M], contiguous: a is [T, K], and in the place of a[i] stands a[rows[i] // top], as of `copies` that
    `gemmgen.ops.route` returns; copies of tokens are never made. top: at least 1. Where there is no such row of a, as of -1, a row of zeros is multiplied.
    Such an a is read by the address, and layout "nt" or "nn".
    """
    p = dense_problem(a, "none", layout, out_dtype, epilogue)
    p, table = segments(p, row_groups, group_ends, alignment)
    p, by_index = taken(p, rows, top)
    return compute(
        p, config, a, b, out, arguments,
        table=table, expected_rows=expected_rows, expected_groups=expected_groups,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready, by_index=by_index,
    )  # fmt: skip


@front
def fp8_block_batched_gemm(
    a: Any,
    scale_a: Any,
    b: Any,
    scale_b: Any,
    out: Any = None,
    *,
    scale_a_layout: str,
    out_dtype: str = "bf16",
    scale_out: Any = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[g] = (a[g] * scale_a[g]) @ (b[g] * scale_b[g])^T` for every g, FP8 promoted every 128 of K.

    a: float8_e4m3fn [G, M, K]; b: float8_e4m3fn [G, N, K]; scale_a: float32 [G, M, ceil(K/128)];
    scale_b: float32 [G, ceil(N/128), ceil(K/128)]; out: [G, M, N] of `out_dtype`.
    """
    p = fp8_block_problem("batched", out_dtype, epilogue)
    scales = of_blocks(scale_a, scale_b, scale_a_layout)
    return compute(
        p, config, a, b, out, arguments, scales,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def fp8_block_masked_gemm(
    a: Any,
    scale_a: Any,
    b: Any,
    scale_b: Any,
    group_rows: Any,
    out: Any = None,
    *,
    scale_a_layout: str,
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
    """`masked_gemm` of FP8 operands, scaled as in `fp8_block_batched_gemm`."""
    p = fp8_block_problem("masked", out_dtype, epilogue)
    scales = of_blocks(scale_a, scale_b, scale_a_layout)
    return compute(
        p, config, a, b, out, arguments, scales,
        table=group_rows, expected_rows=expected_rows, expected_groups=expected_groups,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def fp8_block_grouped_gemm(
    a: Any,
    scale_a: Any,
    b: Any,
    scale_b: Any,
    out: Any = None,
    *,
    scale_a_layout: str,
    row_groups: Any = None,
    group_ends: Any = None,
    alignment: int = 128,
    rows: Any = None,
    top: int = 1,
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
    """`grouped_gemm` of FP8 operands: a float8_e4m3fn [M, K], scale_a float32 [M, ceil(K/128)], b
    float8_e4m3fn [G, N, K], scale_b float32 [G, ceil(N/128), ceil(K/128)]. With rows a is
    [T, K], and scale_a is of the product's rows all the same, [M, ceil(K/128)], as `gemmgen.ops.spread` gives them."""
    p = fp8_block_problem("none", out_dtype, epilogue)
    p, table = segments(p, row_groups, group_ends, alignment)
    p, by_index = taken(p, rows, top)
    scales = of_blocks(scale_a, scale_b, scale_a_layout)
    return compute(
        p, config, a, b, out, arguments, scales,
        table=table, expected_rows=expected_rows, expected_groups=expected_groups,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready, by_index=by_index,
    )  # fmt: skip


def dense_problem(
    a: Any, grouping: str, layout: str, out_dtype: str | None, epilogue: Expr | str
) -> Problem:
    dtype = dtype_of("a", a, (BF16, F16))
    d: DType = dtype if out_dtype is None else output_dtype(out_dtype)
    return Problem(
        family=recipes.DENSE,
        a=dtype,
        b=dtype,
        d=d,
        layout=layout,
        epilogue=epilogue,
        grouping=grouping,
    )


def fp8_block_problem(grouping: str, out_dtype: str, epilogue: Expr | str) -> Problem:
    d = output_dtype(out_dtype)
    return Problem(
        family=recipes.FP8_BLOCK, a=E4M3, b=E4M3, d=d, epilogue=epilogue, grouping=grouping
    )
