"""From torch tensors to a launch: what every public GEMM function does with its arguments."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..config import Config
from ..errors import ArgumentError
from ..heuristics.tuned import pick
from ..ir.dtypes import DTYPES, F32, DType
from ..ir.expr import (
    ACC,
    PerColumn,
    PerElement,
    PerRow,
    Scalar,
    arguments,
    fold,
    parameter,
    row_stride,
)
from ..ir.groupings import GROUPINGS
from ..pipeline import compile_to_source
from ..problem import Problem
from ..runtime.cache import cached_cubin
from ..runtime.driver import require_hopper
from ..runtime.launch import LoadedKernel, workspace_bytes
from ..runtime.sms import limited
from ..runtime.tensor_map import Matrix
from ..runtime.torch_tensors import (
    check_apart,
    check_tensor,
    current_stream,
    dtype_of,
    empty,
    mn_major,
    same_memory,
    torch,
)
from ..target import H200

SCALE_BLOCK = 128
SCALE_LAYOUTS = ("row", "mn")
SIDES = ("rows", "columns")
INT8_K = (2**31 - 1) // 2**14  # products of at most 2**14 each

Shape = tuple[int, int, int]
Values = dict[str, int | float]


@lru_cache(maxsize=256)
def loaded(p: Problem, c: Config, device: int) -> LoadedKernel:
    """The kernel for `p` and `c`, compiled (or compiled before: `runtime.cache`) and loaded on CUDA device
    `device`, kept for next time."""
    artifact = compile_to_source(p, c)
    return LoadedKernel(artifact.kernel, cached_cubin(artifact.source, artifact.name), device)


@lru_cache(maxsize=4096)
def chosen(p: Problem, shape: Shape, groups: int = 1, device: int = 0) -> Config:
    """The measured config for `groups` GEMMs of shape (M, N, K) on CUDA device `device`, or else what the cost
    model chooses (`gemmgen.heuristics.tuned`), kept for next time."""
    return config_for(p, shape, groups, require_hopper(device))


def config_for(p: Problem, shape: Shape, groups: int, device_name: str) -> Config:
    """As `chosen`, for a device by name, which need not be here."""
    return pick(p, shape, limited(H200), groups, device_name).config


def run(
    p: Problem,
    config: Config | None,
    a: Any,
    b: Any,
    out: Any,
    shape: Shape,
    scales: dict[str, Any],
    values: Values,
    given: dict[str, Any],
    *,
    groups: int = 1,
    rows: int | None = None,
    scale_out: Any = None,
) -> Any:
    """Check the output and the epilogue's arguments, launch on torch's current stream, return `out`,
    or (`out`, `scale_out`) if D is FP8.

    `scales`: tensors, by the name a tensor map gives them; held until the launch is on the stream, for
    some are copies that nobody else holds. `shape`: (M, N, K), M of A or of each group's. `rows`: of a
    group, as far as the host knows; the cost model's M.
    """
    m, n, k = shape
    lead = (groups,) * GROUPINGS[p.grouping].outputs
    d_shape = (*lead, m, n // fold(p.epilogue))
    out = empty(d_shape, p.d, a.device) if out is None else out
    check_tensor("out", out, p.d, d_shape, a.device, contiguous=True)
    check_apart("out", out, {"a": a, "b": b})
    scale_out = _scale_out(p, d_shape, scale_out, {"a": a, "b": b, "out": out})
    result = (out, scale_out) if p.quantised else out
    extra = _epilogue_values(p, shape, groups, given, a.device)
    if 0 in (m, groups):
        return result
    device = a.device.index
    mean = _ceil(k, groups) if GROUPINGS[p.grouping].depths else k
    kernel = loaded(p, config or chosen(p, (rows or m, n, mean), groups, device), device)
    maps = _workspace(kernel, shape, groups, a.device)
    tensors = {"a": a, "b": b, "d": out, **scales}
    matrices = {name: matrix(t) for name, t in tensors.items()}
    sizes = {"shape_m": m, "shape_n": n, "shape_k": k, "groups": groups}
    store = {"d": out.data_ptr(), "d_stride": out.stride(-2), "d_stride_g": out.stride(0)}
    if p.quantised:
        store |= {"scale_d": scale_out.data_ptr(), "scale_d_stride": scale_out.stride(-1)}
        store["scale_d_stride_g"] = scale_out.stride(0)
    held = {"group_maps": maps.data_ptr()} if maps is not None else {}
    plan = kernel.plan(
        shape, matrices, {**sizes, **values, **store, **extra, **held}, current_stream(a.device)
    )
    kernel.launch(plan)
    del maps  # held until here: the allocator may now give it to what follows on this stream
    return result


def _scale_out(p: Problem, d_shape: tuple[int, ...], given: Any, others: dict[str, Any]) -> Any:
    """float32 [..., M, ceil(N/128)] of an FP8 D, contiguous along M: `given`, or a new one whose columns
    begin at multiples of 16 bytes. Raises ArgumentError."""
    if not p.quantised:
        if given is not None:
            raise ArgumentError("scale_out", type(given).__name__, "is for out_dtype 'e4m3' only")
        return None
    *lead, m, n = d_shape
    blocks, device = _ceil(n, SCALE_BLOCK), others["out"].device
    if given is None:
        return empty((*lead, blocks, m), F32, device).mT
    check_tensor("scale_out", given, F32, (*lead, m, blocks), device)
    if m > 1 and given.stride(-2) != 1:
        raise ArgumentError("scale_out stride along M", given.stride(-2), "must be 1")
    if blocks > 1 and given.stride(-1) < m:
        allowed = f"must be at least the column's {m} elements"
        raise ArgumentError("scale_out column stride", given.stride(-1), allowed)
    check_apart("scale_out", given.mT, others)
    return given


def _workspace(kernel: LoadedKernel, shape: Shape, groups: int, device: Any) -> Any:
    """Where a launch keeps the tensor maps it derives, or None."""
    size = workspace_bytes(kernel.kernel, kernel.grid(shape, groups), groups)
    return torch().empty(size, dtype=torch().uint8, device=device) if size else None


def added(p: Problem, c: Any, out: Any) -> tuple[Problem, dict[str, Any]]:
    """`p` plus `c` (None: 0), and what its epilogue then reads: nothing if `c` is `out`, in FP32, to which the
    copy engine adds."""
    if c is None:
        return p, {}
    if p.d is F32 and same_memory(c, out):
        return replace(p, accumulate=True), {}
    return replace(p, epilogue=ACC + PerElement("c", p.d)), {"c": c}


def operand_shape(p: Problem, a: Any, b: Any) -> Shape:
    """(M, N, K) of a [M, K] or [G, M, K] and b [N, K] or [G, N, K]; an operand that is MN-major has
    the last two the other way round. Raises ArgumentError."""
    g, (a_turned, b_turned) = GROUPINGS[p.grouping], p.mn_major
    any_group = (None,)
    a_shape = check_tensor("a", a, p.a, (*any_group * g.rows, None, None), contiguous=True)[-2:]
    m, k = reversed(a_shape) if a_turned else a_shape
    sides = (k, None) if b_turned else (None, k)
    b_shape = check_tensor("b", b, p.b, (*any_group * g.columns, *sides), a.device, contiguous=True)
    n = b_shape[-2:][b_turned]
    if g.rows and a.shape[0] != b.shape[0]:
        raise ArgumentError("b groups", b.shape[0], f"must be {a.shape[0]}, as of a")
    for name, side in ((f"b {SIDES[b_turned]}", n), (f"a {SIDES[not a_turned]}", k)):
        if side == 0:
            raise ArgumentError(name, side, "must be at least 1")
    if n % fold(p.epilogue):
        allowed = "must be even: the epilogue pairs columns of the product"
        raise ArgumentError(f"b {SIDES[b_turned]}", n, allowed)
    if p.a.integer and p.family == "dense" and k > INT8_K:
        raise ArgumentError("a columns", k, f"must be at most {INT8_K}: INT32 may overflow")
    return m, n, k


def block_scales(
    a: Any, scale_a: Any, layout: str, b: Any, scale_b: Any
) -> tuple[dict[str, Any], Values]:
    """The scales of `fp8_block` for operands already checked, as `run` takes them: A's by tensor map,
    B's by pointer and strides. Raises ArgumentError."""
    scale_a = _row_scales("scale_a", a, scale_a, layout, "scale_a_layout")
    columns = _ceil(b.shape[-2], SCALE_BLOCK)
    check_tensor("scale_b", scale_b, F32, (*b.shape[:-2], columns, scale_a.shape[-1]), a.device)
    values: Values = {
        "scale_b": scale_b.data_ptr(),
        "scale_b_stride_n": scale_b.stride(-2),
        "scale_b_stride_k": scale_b.stride(-1),
        "scale_b_stride_g": scale_b.stride(0),
    }
    return {"scale_a": scale_a.mT}, values


def vector_scales(
    a: Any, scale_a: Any, b: Any, scale_b: Any, layout: str
) -> tuple[dict[str, Any], Values]:
    """The scales of `fp8_1d1d` for operands already checked: both by tensor map. Raises ArgumentError."""
    sides = (("scale_a", a, scale_a), ("scale_b", b, scale_b))
    return {n: _row_scales(n, x, s, layout, "scale_layout").mT for n, x, s in sides}, {}


def _row_scales(name: str, x: Any, scale: Any, layout: str, argument: str) -> Any:
    """float32 [..., rows, ceil(K/128)], contiguous along the rows: copied there if `layout` is "row"."""
    if layout not in SCALE_LAYOUTS:
        raise ArgumentError(argument, layout, "must be 'row' or 'mn'")
    check_tensor(name, scale, F32, (*x.shape[:-1], _ceil(x.shape[-1], SCALE_BLOCK)), x.device)
    if layout == "row":
        return mn_major(scale)
    if x.shape[-2] > 1 and scale.stride(-2) != 1:
        side = {"scale_a": "M", "scale_b": "N"}[name]
        raise ArgumentError(
            f"{name} stride along {side}", scale.stride(-2), "must be 1 for layout 'mn'"
        )
    return scale


def matrix(t: Any) -> Matrix:
    """A tensor [rows, columns] or [groups, rows, columns], contiguous along its columns."""
    grouped = t.dim() == 3
    return Matrix(
        pointer=t.data_ptr(),
        outer=t.shape[-2],
        inner=t.shape[-1],
        stride=t.stride(-2),
        groups=t.shape[0] if grouped else 1,
        group_stride=t.stride(0) if grouped else 0,
    )


def output_dtype(name: str, allowed: tuple[str, ...] = ("bf16", "f16", "f32", "e4m3")) -> DType:
    """Raises ArgumentError unless `name` is one of `allowed`."""
    if name not in allowed:
        raise ArgumentError("out_dtype", name, f"must be one of {', '.join(allowed)}")
    return DTYPES[name]


def _epilogue_values(
    p: Problem, shape: Shape, groups: int, given: dict[str, Any], device: Any
) -> Values:
    g = GROUPINGS[p.grouping]
    sides = {
        PerColumn: ((groups,) * g.vectors, shape[1]),
        PerRow: ((groups,) * g.outputs, shape[0]),
    }
    values: Values = {}
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
                lead, side = sides[PerRow]
                values |= _per_element(name, given[name], dtype, (*lead, side, shape[1]), device)
            case _:
                lead, side = sides.get(type(x), ((), 1))
                values[parameter(name)] = _vector(name, given[name], (*lead, side), device)
    return values


def _vector(name: str, t: Any, shape: tuple[int, ...], device: Any) -> int:
    """The address of float32 `shape`, dense. One element may have no dimension, and one row two."""
    dtype_of(name, t, (F32,))
    t = t.reshape(shape) if t.numel() == math.prod(shape) and t.is_contiguous() else t
    check_tensor(name, t, F32, shape, device)
    if not t.is_contiguous():
        raise ArgumentError(f"{name} strides", tuple(t.stride()), "must be contiguous")
    return int(t.data_ptr())


def _per_element(name: str, t: Any, dtype: DType, shape: tuple[int, ...], device: Any) -> Values:
    check_tensor(name, t, dtype, shape, device, contiguous=True)
    stride = t.stride(-2) if shape[-2] > 1 else 0
    group = t.stride(0) if len(shape) > 2 and shape[0] > 1 else 0
    for what, step in (("row", stride), ("group", group)):
        if step % 2:
            raise ArgumentError(f"{name} {what} stride", step, "must be a multiple of 2 elements")
    if t.data_ptr() % (2 * dtype.bytes):
        allowed = f"address must be a multiple of {2 * dtype.bytes} bytes"
        raise ArgumentError(name, t.data_ptr(), allowed)
    return {
        parameter(name): t.data_ptr(),
        row_stride(name): stride,
        f"{parameter(name)}_stride_g": group,
    }


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
