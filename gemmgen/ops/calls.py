"""From torch tensors to a launch: what every public GEMM function does with its arguments."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ..config import Config
from ..errors import ArgumentError
from ..ir.counts import check_side
from ..ir.dtypes import DTYPES, F32, DType
from ..ir.exchange import PARTIALS
from ..ir.expr import ACC, PerElement, fold
from ..ir.groupings import GROUPINGS
from ..ir.row_sums import ROOM, fold_rows
from ..ir.squares import SQUARES
from ..problem import INT8_K, Problem
from ..recipes import SCALE_BLOCK as SCALE_BLOCK
from ..recipes import recipe
from ..runtime.arrays import ArrayDevice
from ..runtime.launch import LoadedKernel, workspace_bytes
from ..runtime.tensor_map import Matrix
from ..runtime.torch_tensors import (
    check_tensor,
    current_stream,
    reader_of,
    same_memory,
    torch,
)
from ..runtime.workspaces import WORKSPACES, zeroed
from . import building, by_row, invariance
from .by_row import ByRow
from .epilogue import Shape, Values, epilogue_values, numbers_given
from .front import Call, Fresh, fresh, returned, tensor_of
from .outputs import outputs_of, stores
from .results import of_no_rows, planned
from .told import ALONE, ToldGroups, summed_of

SCALE_LAYOUTS = ("row", "mn")
SIDES = ("rows", "columns")


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
    groups: ToldGroups = ALONE,
    scale_out: Any = None,
    squares: Any = None,
    room: int = 0,
) -> Any:
    """Check the output and the epilogue's arguments and plan the launch on torch's current stream. With no
    rows or groups there is nothing to launch: then `out`, or (`out`, `scale_out`) if D is FP8, (`out`, `squares`) if those are summed.

    `scales`: tensors, by the name a tensor map gives them; or Fresh, copies of them, or ByRow, which are copied only for a
    kernel that needs it. `shape`: (M, N, K), M of A or of each group's. `room`: columns of a compact D.
    """
    (m, n, k), count = shape, groups.count
    if not isinstance(config, Config | None):
        raise ArgumentError("config", config, "must be a gemmgen.Config or None")
    rows, columns = fold_rows(p.epilogue), fold(p.epilogue)
    across = room if p.compact else p.gaps.columns(n // columns) - p.squares
    d_shape = (*(count,) * GROUPINGS[p.grouping].outputs, m // rows, across)
    made = outputs_of(p, d_shape, a, b, out, scale_out, squares)
    result = {name: tensor_of(x) for name, x in made.items()}
    out = result["out"]
    extra = epilogue_values(p, shape, count, given, a.device)
    if 0 in (m, count):
        return returned(of_no_rows(p, result))
    kernel = _kernel(p, config, shape, groups, a.device, scales)
    scales = by_row.as_maps_read(scales, kernel)
    made |= scales | _workspace(kernel, shape, count, a.device)
    tensors = {"a": a, "b": b, "d": out, **scales}
    matrices = {name: matrix(tensor_of(t)) for name, t in tensors.items()}
    sizes = {"shape_m": m, "shape_n": n, "shape_k": k, "groups": count}
    store = stores(result) | {"d_stride_g": out.stride(0)}
    if p.quantised:
        store["scale_d_stride_g"] = result["scale_out"].stride(0)
    if p.compact:
        store[ROOM] = room
    if p.squares:
        store[f"{SQUARES}_stride_g"] = result[SQUARES].stride(0)
    anew = tuple(x for x in made.values() if isinstance(x, Fresh))
    held = {x.name: x.tensor.data_ptr() for x in anew}
    values = {**sizes, **values, **groups.table, **store, **extra, **held}
    plan = planned(kernel, shape, matrices, values, current_stream(a.device))
    lasting = numbers_given(p, given)
    return Call(
        kernel=kernel,
        plan=plan,
        result=result,
        fresh=anew,
        lasting=lasting,
        stream=reader_of(a.device),
    )


def _kernel(
    p: Problem,
    config: Config | None,
    shape: Shape,
    groups: ToldGroups,
    device: Any,
    scales: dict[str, Any],
) -> LoadedKernel:
    """Of the config that was given, if it has the bits that were asked for, or of the one chosen: one that reads
    scales in place, where they lie row by row and that pays."""
    (m, n, k), count = shape, groups.filled or groups.count
    if config:
        invariance.check(p, config, summed_of(p, k, groups), groups.split_k)
        return building.given(p, config, device.index)
    mean = groups.rows or m, n, _ceil(k, count) if GROUPINGS[p.grouping].depths else k
    scale_a = scales.get("scale_a")
    if isinstance(scale_a, ByRow):
        return by_row.loaded_choice(p, scale_a, mean, count, device, groups.split_k)
    return building.loaded_choice(p, mean, count, device.index, groups.split_k)


def _workspace(kernel: LoadedKernel, shape: Shape, groups: int, device: Any) -> dict[str, Fresh]:
    """Where a launch keeps the tensor maps it derives, if it does. Every call has its own: launches on two
    streams, or one of them in a CUDA graph, must not write each other's. And where its CTAs hand sums over, if they do:
    that has to be zero, so a stream's launches share it."""
    ctas = kernel.grid(shape, groups)
    size = workspace_bytes(kernel.kernel, ctas, groups)
    if not size and not kernel.kernel.workspace.words:
        return {}
    if isinstance(device, ArrayDevice):
        who = "groups that split K need" if size else "stream needs"
        allowed = f"must be torch tensors: {who} a workspace, which torch allocates"
        raise ArgumentError("a, b", "arrays", allowed)
    if size:
        new = partial(torch().empty, size, dtype=torch().uint8, device=device)
        return {"group_maps": fresh("group_maps", new)}
    own = partial(zeroed, kernel.kernel, ctas, device)
    shared = partial(WORKSPACES.of, kernel.kernel, ctas, device)
    return {PARTIALS: replace(fresh(PARTIALS, shared), own=own)}


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
    rows, columns = f"a {SIDES[a_turned]}", f"a {SIDES[not a_turned]}"
    for name, side in ((f"b {SIDES[b_turned]}", n), (columns, k), *((rows, m),) * (m > 0)):
        check_side(name, side)
    if n % fold(p.epilogue):
        allowed = "must be even: the epilogue pairs columns of the product"
        raise ArgumentError(f"b {SIDES[b_turned]}", n, allowed)
    if m % fold_rows(p.epilogue):
        allowed = f"must be a multiple of {fold_rows(p.epilogue)}: the epilogue sums as many rows"
        raise ArgumentError(f"a {SIDES[a_turned]}", m, allowed)
    each = INT8_K // max(1, a.shape[0]) if g.summed else INT8_K
    if p.a.integer and not recipe(p.family).promotes and k > each:
        raise ArgumentError("a columns", k, f"must be at most {each}: INT32 may overflow")
    return m, n, k


def block_scales(
    a: Any, scale_a: Any, b: Any, scale_b: Any, layout: str, argument: str
) -> tuple[dict[str, Any], Values]:
    """A's per row, B's per block, of operands already checked, as `run` takes them: A's by tensor map, and both by
    pointer and strides. argument: what `layout` is called. Raises ArgumentError."""
    read = _row_scales("scale_a", a, scale_a, layout, argument)
    columns = _ceil(b.shape[-2], SCALE_BLOCK)
    check_tensor("scale_b", scale_b, F32, (*b.shape[:-2], columns, scale_a.shape[-1]), a.device)
    return {"scale_a": read}, _lying("scale_a", scale_a, "m") | _lying("scale_b", scale_b, "n")


def _lying(name: str, scale: Any, rows: str) -> Values:
    """Where scales lie, as a kernel's parameters say it."""
    return {
        name: scale.data_ptr(),
        f"{name}_stride_{rows}": scale.stride(-2),
        f"{name}_stride_k": scale.stride(-1),
        f"{name}_stride_g": scale.stride(0),
    }


def vector_scales(
    a: Any, scale_a: Any, b: Any, scale_b: Any, layout: str, argument: str
) -> tuple[dict[str, Any], Values]:
    """Both per row, as `block_scales`: by tensor map, so that layout "row" is copied."""
    sides = (("scale_a", a, scale_a), ("scale_b", b, scale_b))
    read = {n: _row_scales(n, x, s, layout, argument) for n, x, s in sides}
    return {n: x.copied() if isinstance(x, ByRow) else x for n, x in read.items()}, {}


def a_scales(a: Any, scale_a: Any, layout: str, argument: str) -> tuple[dict[str, Any], Values]:
    """A's alone, per row, as `vector_scales`."""
    read = _row_scales("scale_a", a, scale_a, layout, argument)
    return {"scale_a": read.copied() if isinstance(read, ByRow) else read}, {}


def _row_scales(name: str, x: Any, scale: Any, layout: str, argument: str) -> Any:
    """float32 [..., ceil(K/128), rows], contiguous along the rows; ByRow if `layout` is "row"."""
    if layout not in SCALE_LAYOUTS:
        raise ArgumentError(argument, layout, "must be 'row' or 'mn'")
    check_tensor(name, scale, F32, (*x.shape[:-1], _ceil(x.shape[-1], SCALE_BLOCK)), x.device)
    if layout == "row":
        return ByRow(name=name, tensor=scale)
    if x.shape[-2] > 1 and scale.stride(-2) != 1:
        side = {"scale_a": "M", "scale_b": "N"}[name]
        raise ArgumentError(
            f"{name} stride along {side}", scale.stride(-2), "must be 1 for layout 'mn'"
        )
    return scale.mT


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


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
