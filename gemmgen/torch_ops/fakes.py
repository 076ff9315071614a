"""What the operators return, without computing it: exact shapes, dtypes and strides, also of symbolic sizes.

Dtypes, dimensions, devices and sizes that must agree are checked, so that a tracer learns of a mistake before
the launch does. Strides and addresses are left to the launch: they are the allocator's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import DTYPES, F32, FLOATS, FP8, S32, DType
from ..ir.expr import PerColumn, PerElement, PerRow, Scalar, arguments, fold
from ..ir.groupings import GROUPINGS
from ..ir.packed import COLUMNS, ROWS
from ..ops import SCALE_BLOCK, quantise_rows
from ..ops.quantise import KINDS
from ..problem import Problem
from ..runtime.torch_tensors import dtype_of, torch, torch_dtype
from .agreement import check, check_dims, equal, require
from .made import Sides, ceil, column_scales, empty
from .operators import Operator, Overload

Given = dict[str, Any]
Shape = tuple[Any, Any, Any, Any]  # G, M, N, K


def fake(op: Operator, overload: Overload) -> Callable[..., Any]:
    """The fake implementation of an overload. It raises ArgumentError; of symbolic sizes, torch's errors."""

    def implementation(*args: Any, **kwargs: Any) -> Any:
        given = op.bind(args, kwargs)
        return _result(op, overload, given) if op.operands else _quantised(op, given)

    return implementation


def checked(op: Operator, overload: Overload, given: Given) -> tuple[Problem, Shape]:
    """What is computed, and (G, M, N, K), M of D. Raises ArgumentError."""
    p = op.meant(_problem(op, overload, given), given)
    shape = _shape(op, p, given)
    _check_devices(given)
    shape = _taken(shape, given)
    _check_scales(op, p, shape, given)
    _check_tables(op, shape, given)
    groups, m, n, k = shape
    shape = groups, op.rows(m, given), n, k
    _check_read(op, p, shape, given)
    return p, shape


def _result(op: Operator, overload: Overload, given: Given) -> Any:
    p, shape = checked(op, overload, given)
    if overload == "out":
        return check_out(p, shape, given)
    d_shape, scales = _output_sides(p, shape)
    out = empty(d_shape, p.d, given["a"].device)
    if overload == "quantised":
        return out, column_scales(scales, given["a"].device)
    if overload == "gathered":
        return out, _gathered(p, shape[1], given["a"])
    return out


def _output_sides(p: Problem, shape: Shape) -> tuple[Sides, Sides]:
    """Of D, and of its scales if it has any."""
    groups, m, n, _ = shape
    rows = *(groups,) * GROUPINGS[p.grouping].outputs, m
    columns = p.gaps.columns(n // fold(p.epilogue))
    return (*rows, columns), (*rows, ceil(columns, SCALE_BLOCK))


def check_out(p: Problem, shape: Shape, given: Given) -> None:
    """Of what is written to. Raises ArgumentError."""
    d, scales = _output_sides(p, shape)
    check("out", given["out"], p.d, d)
    if p.quantised:
        check("scale_out", given.get("scale_out"), F32, scales)


def _gathered(p: Problem, m: Any, a: Any) -> Any:
    """A of all ranks, of m rows together."""
    sides = (a.shape[0], m) if p.mn_major[0] else (m, a.shape[1])
    return torch().empty(sides, dtype=a.dtype, device=a.device)


def _quantised(op: Operator, given: Given) -> Any:
    """(q, scale) of `quantise_rows` and `quantise_blocks`."""
    x, block, dtype = given["x"], given["block"], given["dtype"]
    by_row = op.function is quantise_rows
    require(block in (SCALE_BLOCK, None)[: 1 + by_row], "block", block, f"must be {SCALE_BLOCK}")
    require(dtype in KINDS, "dtype", dtype, f"must be one of {', '.join(KINDS)}")
    dtype_of("x", x, FLOATS)
    require(x.dim() >= 2, "x shape", tuple(x.shape), "must be [..., rows, columns]")
    *lead, rows, columns = x.shape
    q = torch().empty(x.shape, dtype=torch_dtype(KINDS[dtype]), device=x.device)
    blocks = ceil(columns, SCALE_BLOCK)
    if by_row and block is not None:
        return q, column_scales((*lead, rows, blocks), x.device)
    sides = (rows,) if by_row else (ceil(rows, SCALE_BLOCK), blocks)
    return q, torch().empty((*lead, *sides), dtype=torch().float32, device=x.device)


def _problem(op: Operator, overload: Overload, given: Given) -> Problem:
    """What is computed: this checks layout, epilogue and output as a launch does."""
    a = dtype_of("a", given["a"], op.operands)
    return Problem(
        family=op.family,
        a=a,
        b=a if op.coded else dtype_of("b", given["b"], FP8 if op.operands == FP8 else (a,)),
        d=_output(op, overload, given, a),
        layout=given.get("layout", Problem.layout),
        epilogue=op.epilogue(given.get("epilogue", "none")),
        grouping=op.grouping,
        alignment=given.get("alignment", Problem.alignment),
        accumulate=given.get("accumulate", Problem.accumulate),
        weights=given.get("weights", Problem.weights),
        heads=given.get("heads"),
    )


def _output(op: Operator, overload: Overload, given: Given, a: DType) -> DType:
    fp8 = ("e4m3",) * ("quantised" in op.overloads)
    match overload:
        case "quantised":
            return DTYPES["e4m3"]
        case "out":
            return dtype_of("out", given["out"], tuple(DTYPES[x] for x in (*op.outputs, *fp8)))
    name = given["out_dtype"] or a.name
    op.check_output(name)
    return DTYPES[name]


def _shape(op: Operator, p: Problem, given: Given) -> Shape:
    """(G, M, N, K of all groups)."""
    a, b, grouping = given["a"], given["b"], GROUPINGS[p.grouping]
    if given.get("packing", "columns") != "columns":
        return _flat_shape(given)
    if op.coded:
        return _coded_shape(p, given)
    check_dims("a", a, 2 + grouping.rows)
    check_dims("b", b, 2 + grouping.columns)
    a_turned, b_turned = p.mn_major
    m, k = (a.shape[-1], a.shape[-2]) if a_turned else a.shape[-2:]
    n, depth = (b.shape[-1], b.shape[-2]) if b_turned else b.shape[-2:]
    equal("K of b", depth, k)
    groups = b.shape[0] if grouping.columns else 1
    if grouping.rows:
        equal("groups of b", groups, a.shape[0])
    if grouping.depths:
        groups = given["group_depths"].shape[0]
    _check_columns(p, n)
    return groups, m, n, k


def _check_columns(p: Problem, n: Any) -> None:
    """Of the product: pairs, or whole heads, where there are such."""
    if fold(p.epilogue) > 1:
        require(n % 2 == 0, "columns of the product", n, "must be even: the epilogue pairs them")
    if p.heads:
        allowed = f"must be a multiple of {p.heads.side}: of whole heads"
        require(n % p.heads.side == 0, "columns of the product", n, allowed)


def _flat_shape(given: Given) -> Shape:
    """Of flat operands, whose scales say how many rows there are."""
    if given["packing"] != "flat":
        raise ArgumentError("packing", given["packing"], "must be 'columns' or 'flat'")
    for name in ("a", "b"):
        check_dims(name, given[name], 1)
        check_dims(f"scale_{name}", given[f"scale_{name}"], 2)
    (m, blocks), n = given["scale_a"].shape, given["scale_b"].shape[0]
    k = blocks * SCALE_BLOCK
    equal("elements of a", given["a"].shape[0], m * k)
    equal("elements of b", given["b"].shape[0], n * k)
    return given["group_depths"].shape[0], m, n, k


def _coded_shape(p: Problem, given: Given) -> Shape:
    """Of packed weights, whose blocks say how far B reaches, and columns where in the last of them it ends."""
    a, b, grouping, form = given["a"], given["b"], GROUPINGS[p.grouping], p.form
    assert form is not None
    check_dims("a", a, 2 + grouping.rows)
    check_dims("b", b, 3 + grouping.columns)
    require(b.dtype == torch().uint8, "b dtype", b.dtype, f"must be {torch().uint8}")
    (m, k), (down, across, size) = a.shape[-2:], b.shape[-3:]
    equal("blocks of b along K", across, ceil(k, COLUMNS))
    equal("bytes of a block of b", size, form.block_bytes)
    groups = b.shape[0] if grouping.columns else 1
    if grouping.rows:
        equal("groups of b", groups, a.shape[0])
    rows = ROWS * down
    n = rows if given["columns"] is None else given["columns"]
    for holds in (n > rows - ROWS, n <= rows):
        require(holds, "columns", n, f"must be {rows - ROWS + 1} to {rows}, or None")
    _check_columns(p, n)
    return groups, m, n, k


def _check_devices(given: Given) -> None:
    for name, x in given.items():
        if isinstance(x, torch().Tensor) and x.device != given["a"].device:
            allowed = f"must be on {given['a'].device}, as a is"
            raise ArgumentError(f"{name} device", str(x.device), allowed)


def _check_scales(op: Operator, p: Problem, shape: Shape, given: Given) -> None:
    groups, m, n, k = shape
    lead = (groups,) * GROUPINGS[p.grouping].rows
    blocks = ceil(k, SCALE_BLOCK)
    match op.scaling:
        case "block":
            check("scale_a", given["scale_a"], F32, (*lead, m, blocks))
            lead = (groups,) * GROUPINGS[p.grouping].columns
            check("scale_b", given["scale_b"], F32, (*lead, ceil(n, SCALE_BLOCK), blocks))
        case "rows":
            check("scale_a", given["scale_a"], F32, (*lead, m, blocks))
            if (scale := given["scale_b"]) is not None:
                dtype_of("scale_b", scale, (F32,))
                sides = (*(groups,) * GROUPINGS[p.grouping].columns, n)
                if scale.numel() != 1 or scale.dim() > 1:
                    check("scale_b", scale, F32, sides)
        case "vector":
            check("scale_a", given["scale_a"], F32, (m, blocks))
            check("scale_b", given["scale_b"], F32, (n, blocks))
        case "whole":
            for name in ("scale_a", "scale_b"):
                if (scale := given.get(name)) is not None:
                    require(p.d is not S32, name, "a tensor", "must be None for out_dtype 's32'")
                    dtype_of(name, scale, (F32,))


def _taken(shape: Shape, given: Given) -> Shape:
    """Of rows of a that come by index as many as there are indices."""
    rows, top = given.get("rows"), given.get("top", 1)
    if rows is None:
        require(top == 1, "top", top, "is of rows, which are not given")
        return shape
    require(given["row_groups"] is None, "rows", "given", "needs group_ends, not row_groups")
    dtype_of("rows", rows, (S32,))
    check_dims("rows", rows, 1)
    require(top >= 1, "top", top, "must be at least 1")
    return shape[0], rows.shape[0], shape[2], shape[3]


def _check_tables(op: Operator, shape: Shape, given: Given) -> None:
    groups, m, *_ = shape
    entries = {"group_rows": groups, "group_ends": groups, "group_depths": groups, "row_groups": m}
    tables = {name: given[name] for name in entries if given.get(name) is not None}
    if op.grouping == "ends" and len(tables) != 1:
        allowed = "exactly one of them must be given"
        raise ArgumentError("row_groups, group_ends", sorted(tables), allowed)
    for name, table in tables.items():
        check(name, table, S32, (entries[name],))


def _check_read(op: Operator, p: Problem, shape: Shape, given: Given) -> None:
    """What the epilogue reads, and nothing else, is given."""
    groups, m, n, _ = shape
    grouping = GROUPINGS[p.grouping]
    rows = (*(groups,) * grouping.outputs, m)
    columns = (*(groups,) * grouping.vectors, n)
    wanted = {x.name: x for x in arguments(p.epilogue)}
    for name in op.epilogue_arguments:
        if (given.get(name) is not None) != (name in wanted):
            allowed = f"the epilogue reads {', '.join(wanted) or 'nothing'}"
            raise ArgumentError(name, given.get(name), allowed)
    for name, x in wanted.items():
        match x:
            case Scalar():
                pass
            case PerElement(_, dtype):
                check(name, given[name], dtype, (*rows, n))
            case _:
                sides = {PerRow: rows, PerColumn: columns}.get(type(x), ())
                dtype_of(name, given[name], (F32,))
                equal(f"elements of {name}", given[name].numel(), math.prod(sides))
    if given.get("c") is not None and "c" not in wanted:  # added, by no epilogue
        check("c", given["c"], p.d, (*rows, n))
