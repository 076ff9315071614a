"""One GEMM: dense, FP8 with and without block scales, INT8."""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..config import Config
from ..ir.dtypes import BF16, E4M3, F16, F32, S8
from ..ir.expr import Expr
from ..problem import Problem
from ..runtime.torch_tensors import dtype_of
from .calls import added, output_dtype
from .compute import Scales, compute, of_blocks
from .front import front
from .scaled import fp8_problem, int8_problem


@front
def fp8_block_gemm(
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
    heads: tuple[int, int, int] | None = None,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[M, N] = (a * scale_a) @ (b * scale_b)^T` with FP32 promotion every 128 of K.

    a: float8_e4m3fn [M, K]; b: float8_e4m3fn [N, K]; both contiguous along K, row strides multiples
    of 16 bytes (rows may be padded), 16-byte aligned.
    scale_a: float32 [M, ceil(K/128)], one per row and 128 of K. `scale_a_layout` says how it lies:
    "mn", contiguous along M with a column stride that is a multiple of 4 elements, or "row", any strides. Both are
    read in place, by a kernel for each; but "row" is copied to "mn" first, on every call, where the cost model says that
    a copy costs less, or with a config without `lane_scales`.
    scale_b: float32 [ceil(N/128), ceil(K/128)], any non-negative strides.
    out: [M, N] of `out_dtype` ("bf16", "f16", "f32", "e4m3"), contiguous along N, row stride a multiple
    of 16 bytes; allocated if None (with rows padded where N is not). M = 0 returns at once.
    scale_out: for out_dtype "e4m3", float32 [M, ceil(N/128)], contiguous along M, any column stride of
    at least M; allocated if None, as the next GEMM's `scale_a` with layout "mn". The result is then
    (out, scale_out): of a row's 128 columns out holds x * (448 / amax) and scale_out amax / 448, amax
    the greatest |x|, at least 1e-4; each operation is rounded once.
    config: None lets the cost model choose. invariant: True: the order in which the products of an element are added up, and
    with it its bits, is a function of N, K, the operands' dtypes and the family alone, whatever M, the row's place and
    the groups are; False: it may follow the launch; None: as `gemmgen.ops.set_invariant` or the environment
    variable GEMMGEN_INVARIANT says, else False. A config that is given must then add up so too.
    weights_ready: True promises that no launch still running when this one begins writes b or scale_b. The chosen config then
    begins while previous launches end, and loads its first stages of b meanwhile; a config that is given does so with
    `pdl` and `weights_ahead`. A broken promise gives wrong results.
    heads: (left, mid, right): each left + right columns of the product are a head, and out is [M, N + N / (left + right) * mid]: mid columns
    between a head's left and right ones are left as they were, so undefined where out is allocated. N: whole heads; left and right:
    multiples of 32 bytes of out's elements, mid of 16. Not with out_dtype "e4m3", or an epilogue that pairs columns.
    epilogue: an expression, or the name of one in `gemmgen.epilogues`.
    arguments: what `epilogue` reads, by name, in the product's columns. One that pairs
    columns (`swiglu`) makes out [M, N/2], N even; its vectors and matrices still have N columns.
    Runs on torch's current stream. Raises ArgumentError naming the argument, UnsupportedProblem,
    IllegalConfig, CompileError, RuntimeUnavailable, LaunchError.
    """
    d = output_dtype(out_dtype)
    p = Problem(family=recipes.FP8_BLOCK, a=E4M3, b=E4M3, d=d, epilogue=epilogue, heads=heads)
    scales = of_blocks(scale_a, scale_b, scale_a_layout)
    return compute(
        p, config, a, b, out, arguments, scales,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def fp8_wgrad_gemm(
    a: Any,
    scale_a: Any,
    b: Any,
    scale_b: Any,
    out: Any = None,
    *,
    c: Any = None,
    scale_layout: str,
    out_dtype: str = "f32",
    config: Config | None = None,
    invariant: bool | None = None,
) -> Any:
    """`out[M, N] = c + (a * scale_a) @ (b * scale_b)^T`, both operands scaled 1x128 along K (1D1D).

    a: float8_e4m3fn [M, K]; b: float8_e4m3fn [N, K]; both as in `fp8_block_gemm`.
    scale_a: float32 [M, ceil(K/128)]; scale_b: float32 [N, ceil(K/128)]. `scale_layout`, for both: "mn",
    contiguous along M (N) with a column stride that is a multiple of 4 elements, or "row", any strides
    (copied to "mn" first).
    c: None (0), or [M, N] of `out_dtype`, contiguous along N, row stride even; it may be `out` itself,
    whole: then the product is added in place (float32: by the copy engine, which reads nothing back).
    out: [M, N] of `out_dtype` ("f32", "bf16", "f16"), as in `fp8_block_gemm`. Raises as `fp8_block_gemm`.
    """
    d = output_dtype(out_dtype, ("f32", "bf16", "f16"))
    p = Problem(family=recipes.FP8_1D1D, a=E4M3, b=E4M3, d=d)
    p, given = added(p, c, out)
    scales = Scales(a=scale_a, b=scale_b, layout=scale_layout)
    return compute(p, config, a, b, out, given, scales, invariant=invariant)


@front
def int8_block_gemm(
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
    """`fp8_block_gemm` of int8 operands: each 128 of K is summed exactly in INT32, scaled and added in
    FP32."""
    p = Problem(family=recipes.FP8_BLOCK, a=S8, b=S8, d=output_dtype(out_dtype), epilogue=epilogue)
    scales = of_blocks(scale_a, scale_b, scale_a_layout)
    return compute(
        p, config, a, b, out, arguments, scales,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    layout: str = Problem.layout,
    out_dtype: str | None = None,
    accumulate: bool = False,
    scale_out: Any = None,
    config: Config | None = None,
    invariant: bool | None = None,
    weights_ready: bool = False,
    epilogue: Expr | str = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[M, N] = epilogue(A[M, K] @ B[K, N])` with FP32 accumulation.

    layout: how `a`, then `b`, holds its matrix: "nt" a [M, K], b [N, K]; "nn" a [M, K], b [K, N];
    "tn" a [K, M], b [K, N]; "tt" a [K, M], b [N, K].
    a: bfloat16 or float16; b: the same dtype; both contiguous along their last dimension, row strides
    multiples of 16 bytes (rows may be padded), 16-byte aligned.
    out: [M, N] of `out_dtype` ("bf16", "f16", "f32", "e4m3"; None: a's dtype), contiguous along N, row
    stride a multiple of 16 bytes; allocated if None. M = 0 returns at once.
    accumulate: add to what `out` holds, which must then be given, float32.
    config: None lets the cost model choose. invariant, weights_ready, scale_out, epilogue, arguments, the result: as in
    `fp8_block_gemm`. Runs on torch's current stream. Raises as `fp8_block_gemm`.
    """
    dtype = dtype_of("a", a, (BF16, F16))
    d = dtype if out_dtype is None else output_dtype(out_dtype)
    d = F32 if accumulate and out_dtype is None else d
    p = Problem(
        family=recipes.DENSE,
        a=dtype,
        b=dtype,
        d=d,
        layout=layout,
        epilogue=epilogue,
        accumulate=accumulate,
    )
    return compute(
        p, config, a, b, out, arguments,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def fp8_gemm(
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
    """`out[M, N] = scale_a * scale_b * (a @ b^T)`, FP8 with one scale per tensor, row or column.

    a: float8_e4m3fn or float8_e5m2 [M, K]; b: either of them [N, K]; both contiguous along K, row
    strides multiples of 16 bytes, 16-byte aligned.
    scale_a: None (1), a float, a float32 CUDA tensor of one element (read by the kernel, without a
    synchronisation), or float32 [M], one per row. scale_b: the same, or float32 [N], one per column.
    accurate: promote to FP32 every 128 of K; False leaves the sum in the tensor core's 14 bits (fast
    accumulation).
    epilogue: of the scaled product; it may read no `scale_a` or `scale_b` of its own.
    out: [M, N] of `out_dtype` ("bf16", "f16", "f32", "e4m3"), contiguous along N, row stride a multiple
    of 16 bytes; allocated if None. M = 0 returns at once. invariant, weights_ready (of scale_b too), scale_out, arguments,
    the result: as in `fp8_block_gemm`. Raises as that.
    """
    scales = (scale_a, scale_b)
    p, given = fp8_problem(a, b, scales, accurate, out_dtype, epilogue, arguments)
    return compute(
        p, config, a, b, out, given,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip


@front
def int8_gemm(
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
    """`out[M, N] = scale_a * scale_b * (a @ b^T)` of INT8 operands, summed exactly in INT32.

    a: int8 [M, K]; b: int8 [N, K]; both contiguous along K, row strides multiples of 16 bytes, 16-byte
    aligned; K at most 131071, up to where no sum can overflow.
    scale_a, scale_b: as in `fp8_gemm`; for out_dtype "s32" there are none.
    epilogue: of the scaled product, as in `fp8_gemm`; for out_dtype "s32" there is none.
    out: [M, N] of `out_dtype` ("s32", "bf16", "f16", "f32", "e4m3"), contiguous along N, row stride a
    multiple of 16 bytes; allocated if None. M = 0 returns at once. invariant, weights_ready, scale_out, arguments, the
    result: as in `fp8_block_gemm`. Raises as that.
    """
    p, given = int8_problem((scale_a, scale_b), out_dtype, epilogue, arguments)
    return compute(
        p, config, a, b, out, given,
        scale_out=scale_out, invariant=invariant, weights_ready=weights_ready,
    )  # fmt: skip
