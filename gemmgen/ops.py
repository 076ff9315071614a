"""What users call: GEMMs over torch CUDA tensors. Kernels are compiled on first use and kept."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .config import Config
from .errors import ArgumentError
from .heuristics import choose
from .ir.dtypes import BF16, DTYPES, E4M3, F16, F32, FP8, S8, DType
from .ir.expr import (
    ACC,
    Argument,
    DeviceScalar,
    Expr,
    PerColumn,
    PerElement,
    PerRow,
    Scalar,
    arguments,
    parameter,
    row_stride,
)
from .pipeline import compile_to_source
from .problem import Problem
from .runtime.launch import LoadedKernel, Plan
from .runtime.nvrtc import compile_cubin
from .runtime.tensor_map import Matrix
from .runtime.torch_tensors import (
    check_tensor,
    current_stream,
    dtype_of,
    empty,
    mn_major,
)
from .target import H200

SCALE_BLOCK = 128
INT8_K = (2**31 - 1) // 2**14  # products of at most 2**14 each
SCALE_LAYOUTS = ("row", "mn")


def fp8_block_gemm(
    a: Any,
    scale_a: Any,
    b: Any,
    scale_b: Any,
    out: Any = None,
    *,
    scale_a_layout: str,
    out_dtype: str = "bf16",
    config: Config | None = None,
    epilogue: Expr = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[M, N] = (a * scale_a) @ (b * scale_b)^T` with FP32 promotion every 128 of K.

    a: float8_e4m3fn [M, K]; b: float8_e4m3fn [N, K]; both contiguous along K, row strides multiples
    of 16 bytes (rows may be padded), 16-byte aligned.
    scale_a: float32 [M, ceil(K/128)], one per row and 128 of K. `scale_a_layout` says how it lies:
    "mn", contiguous along M with a column stride that is a multiple of 4 elements (read in place),
    or "row", any strides (copied to "mn" first, on every call).
    scale_b: float32 [ceil(N/128), ceil(K/128)], any non-negative strides.
    out: [M, N] of `out_dtype` ("bf16", "f16", "f32"), contiguous along N, row stride a multiple of
    16 bytes; allocated if None (with rows padded where N is not). M = 0 returns at once.
    config: None lets the cost model choose. arguments: what `epilogue` reads, by name.
    Runs on torch's current stream. Raises ArgumentError naming the argument, UnsupportedProblem,
    IllegalConfig, CompileError, RuntimeUnavailable, LaunchError.
    """
    p = Problem(family="fp8_block", a=E4M3, b=E4M3, d=_output(out_dtype), epilogue=epilogue)
    if scale_a_layout not in SCALE_LAYOUTS:
        raise ArgumentError("scale_a_layout", scale_a_layout, "must be 'row' or 'mn'")
    m, n, k = _shape(p, a, b)
    blocks = _ceil(k, SCALE_BLOCK)
    check_tensor("scale_a", scale_a, F32, (m, blocks), a.device)
    check_tensor("scale_b", scale_b, F32, (_ceil(n, SCALE_BLOCK), blocks), a.device)
    if scale_a_layout == "row":
        scale_a = mn_major(scale_a)
    elif m > 1 and scale_a.stride(0) != 1:
        raise ArgumentError(
            "scale_a stride along M", scale_a.stride(0), "must be 1 for layout 'mn'"
        )
    scales = {
        "scale_a": Matrix(
            pointer=scale_a.data_ptr(), outer=blocks, inner=m, stride=scale_a.stride(1)
        )
    }
    values = {
        "scale_b": scale_b.data_ptr(),
        "scale_b_stride_n": scale_b.stride(0),
        "scale_b_stride_k": scale_b.stride(1),
    }
    return _run(p, config, a, b, out, (m, n, k), scales, values, arguments)


def gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    out_dtype: str | None = None,
    config: Config | None = None,
    epilogue: Expr = Problem.epilogue,
    **arguments: Any,
) -> Any:
    """`out[M, N] = epilogue(a @ b^T)` with FP32 accumulation.

    a: bfloat16 or float16 [M, K]; b: the same dtype [N, K]; both contiguous along K, row strides
    multiples of 16 bytes (rows may be padded), 16-byte aligned.
    out: [M, N] of `out_dtype` ("bf16", "f16", "f32"; None: a's dtype), contiguous along N, row
    stride a multiple of 16 bytes; allocated if None. M = 0 returns at once.
    config: None lets the cost model choose. arguments: what `epilogue` reads, by name.
    Runs on torch's current stream. Raises as `fp8_block_gemm`.
    """
    dtype = dtype_of("a", a, (BF16, F16))
    d = dtype if out_dtype is None else _output(out_dtype)
    p = Problem(family="dense", a=dtype, b=dtype, d=d, epilogue=epilogue)
    return _run(p, config, a, b, out, _shape(p, a, b), {}, {}, arguments)


def fp8_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    accurate: bool = True,
    out_dtype: str = "bf16",
    config: Config | None = None,
) -> Any:
    """`out[M, N] = scale_a * scale_b * (a @ b^T)`, FP8 with one scale per tensor, row or column.

    a: float8_e4m3fn or float8_e5m2 [M, K]; b: either of them [N, K]; both contiguous along K, row
    strides multiples of 16 bytes, 16-byte aligned.
    scale_a: None (1), a float, a float32 CUDA tensor of one element (read by the kernel, without a
    synchronisation), or float32 [M], one per row. scale_b: the same, or float32 [N], one per column.
    accurate: promote to FP32 every 128 of K; False leaves the sum in the tensor core's 14 bits (fast
    accumulation).
    out: [M, N] of `out_dtype` ("bf16", "f16", "f32"), contiguous along N, row stride a multiple of 16
    bytes; allocated if None. M = 0 returns at once. Raises as `fp8_block_gemm`.
    """
    expression, given = _scaled(scale_a, scale_b)
    p = Problem(
        family="fp8" if accurate else "dense",
        a=dtype_of("a", a, FP8),
        b=dtype_of("b", b, FP8),
        d=_output(out_dtype),
        epilogue=expression,
    )
    return _run(p, config, a, b, out, _shape(p, a, b), {}, {}, given)


def int8_gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
    out_dtype: str = "s32",
    config: Config | None = None,
) -> Any:
    """`out[M, N] = scale_a * scale_b * (a @ b^T)` of INT8 operands, summed exactly in INT32.

    a: int8 [M, K]; b: int8 [N, K]; both contiguous along K, row strides multiples of 16 bytes, 16-byte
    aligned; K at most 131071, up to where no sum can overflow.
    scale_a, scale_b: as in `fp8_gemm`; for out_dtype "s32" there are none.
    out: [M, N] of `out_dtype` ("s32", "bf16", "f16", "f32"), contiguous along N, row stride a multiple
    of 16 bytes; allocated if None. M = 0 returns at once. Raises as `fp8_block_gemm`.
    """
    expression, given = _scaled(scale_a, scale_b)
    d = _output(out_dtype, ("s32", "bf16", "f16", "f32"))
    p = Problem(family="dense", a=S8, b=S8, d=d, epilogue=expression)
    shape = _shape(p, a, b)
    if shape[2] > INT8_K:
        raise ArgumentError("a columns", shape[2], f"must be at most {INT8_K} for int8")
    return _run(p, config, a, b, out, shape, {}, {}, given)


def _scaled(scale_a: Any, scale_b: Any) -> tuple[Expr, dict[str, Any]]:
    """The epilogue that applies the scales given, and its arguments."""
    expression: Expr = ACC
    given: dict[str, Any] = {}
    for name, scale, vector in (("scale_a", scale_a, PerRow), ("scale_b", scale_b, PerColumn)):
        if scale is not None:
            expression, given[name] = expression * _scale_leaf(name, scale, vector), scale
    return expression, given


def _scale_leaf(name: str, scale: Any, vector: type[Argument]) -> Argument:
    if isinstance(scale, int | float):
        return Scalar(name)
    if (dtype_of(name, scale, (F32,)) and scale.dim() == 0) or tuple(scale.shape) == (1,):
        return DeviceScalar(name)
    return vector(name)


@lru_cache(maxsize=256)
def loaded(p: Problem, c: Config, device: int) -> LoadedKernel:
    """The kernel for `p` and `c`, compiled and loaded on CUDA device `device`, kept for next time."""
    artifact = compile_to_source(p, c)
    return LoadedKernel(artifact.kernel, compile_cubin(artifact.source, artifact.name), device)


@lru_cache(maxsize=4096)
def chosen(p: Problem, shape: tuple[int, int, int]) -> Config:
    """What the cost model chooses for `p` at shape (M, N, K), kept for next time."""
    return choose(p, shape, H200)


def _run(
    p: Problem,
    config: Config | None,
    a: Any,
    b: Any,
    out: Any,
    shape: tuple[int, int, int],
    scales: dict[str, Matrix],
    values: dict[str, int | float],
    arguments: dict[str, Any],
) -> Any:
    m, n, k = shape
    out = empty(m, n, p.d, a.device) if out is None else out
    check_tensor("out", out, p.d, (m, n), a.device, contiguous=True)
    extra = _epilogue_values(p, shape, arguments, a.device)
    if m == 0:
        return out
    kernel = loaded(p, config or chosen(p, shape), a.device.index)
    matrices = {"a": _matrix(a), "b": _matrix(b), "d": _matrix(out), **scales}
    sizes = {"shape_m": m, "shape_n": n, "shape_k": k}
    store = {"d": out.data_ptr(), "d_stride": out.stride(0)}
    plan: Plan = kernel.plan(
        shape, matrices, {**sizes, **values, **store, **extra}, current_stream(a.device)
    )
    kernel.launch(plan)
    return out


def _shape(p: Problem, a: Any, b: Any) -> tuple[int, int, int]:
    m, k = check_tensor("a", a, p.a, (None, None), contiguous=True)
    n, _ = check_tensor("b", b, p.b, (None, k), a.device, contiguous=True)
    for name, side in (("b rows", n), ("a columns", k)):
        if side == 0:
            raise ArgumentError(name, side, "must be at least 1")
    return m, n, k


def _epilogue_values(
    p: Problem, shape: tuple[int, int, int], given: dict[str, Any], device: Any
) -> dict[str, int | float]:
    values: dict[str, int | float] = {}
    wanted = {x.name: x for x in arguments(p.epilogue)}
    for name in given.keys() - wanted.keys():
        raise ArgumentError(name, given[name], f"the epilogue reads only {sorted(wanted)}")
    for name, x in wanted.items():
        if name not in given:
            raise ArgumentError(name, None, "is read by the epilogue and must be given")
        match x:
            case Scalar():
                values[parameter(name)] = float(given[name])
            case PerElement(_, dtype):
                values |= _per_element(name, given[name], dtype, shape[:2], device)
            case _:
                side = {PerColumn: shape[1], PerRow: shape[0]}.get(type(x), 1)
                check_tensor(name, given[name].reshape(-1), F32, (side,), device, contiguous=True)
                values[parameter(name)] = given[name].data_ptr()
    return values


def _per_element(
    name: str, t: Any, dtype: DType, shape: tuple[int, int], device: Any
) -> dict[str, int | float]:
    check_tensor(name, t, dtype, shape, device, contiguous=True)
    stride = t.stride(0) if shape[0] > 1 else 0
    if stride % 2:
        raise ArgumentError(f"{name} row stride", stride, "must be a multiple of 2 elements")
    if t.data_ptr() % (2 * dtype.bytes):
        allowed = f"address must be a multiple of {2 * dtype.bytes} bytes"
        raise ArgumentError(name, t.data_ptr(), allowed)
    return {parameter(name): t.data_ptr(), row_stride(name): stride}


def _matrix(t: Any) -> Matrix:
    return Matrix(pointer=t.data_ptr(), outer=t.shape[0], inner=t.shape[1], stride=t.stride(0))


def _output(name: str, allowed: tuple[str, ...] = ("bf16", "f16", "f32")) -> DType:
    if name not in allowed:
        raise ArgumentError("out_dtype", name, f"must be one of {', '.join(allowed)}")
    return DTYPES[name]


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
