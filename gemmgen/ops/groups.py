"""What grouped functions share: the device's tables, which rows are whose, and the launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import Config
from ..errors import ArgumentError
from ..ir.dtypes import S32
from ..problem import Problem
from ..runtime.torch_tensors import check_tensor
from .calls import operand_shape, run
from .epilogue import Shape, Values

Scales = dict[str, Any]  # tensors, as `run` takes them


def run_masked(
    p: Problem,
    config: Config | None,
    a: Any,
    b: Any,
    out: Any,
    shape: Shape,
    scales: Scales,
    values: Values,
    arguments: dict[str, Any],
    *,
    group_rows: Any,
    expected_rows: int | None,
    scale_out: Any,
) -> Any:
    """`run` of a problem whose groups have `group_rows`. Raises ArgumentError."""
    groups = a.shape[0]
    return run(
        p,
        config,
        a,
        b,
        out,
        shape,
        scales,
        values | _table("group_rows", group_rows, groups, a),
        arguments,
        groups=groups,
        rows=_expected(expected_rows, shape[0]),
        scale_out=scale_out,
    )


def segments(
    p: Problem, a: Any, b: Any, row_groups: Any, group_ends: Any, alignment: int
) -> tuple[Problem, Shape, Values]:
    """`p` with the grouping that shares A's rows, the shape, and the table's parameter. Raises
    ArgumentError."""
    if (row_groups is None) == (group_ends is None):
        raise ArgumentError("row_groups, group_ends", None, "exactly one of them must be given")
    grouping = "ends" if row_groups is None else "rows"
    p = replace(p, grouping=grouping, alignment=alignment)
    shape = operand_shape(p, a, b)
    if row_groups is None:
        return p, shape, _table("group_ends", group_ends, b.shape[0], a)
    return p, shape, _table("row_groups", row_groups, shape[0], a)


def run_segments(
    p: Problem,
    config: Config | None,
    a: Any,
    b: Any,
    out: Any,
    shape: Shape,
    scales: Scales,
    values: Values,
    arguments: dict[str, Any],
    *,
    scale_out: Any,
) -> Any:
    """`run` of what `segments` found."""
    groups = b.shape[0]
    rows = max(1, -(-shape[0] // max(1, groups)))  # the mean
    return run(
        p,
        config,
        a,
        b,
        out,
        shape,
        scales,
        values,
        arguments,
        groups=groups,
        rows=rows,
        scale_out=scale_out,
    )


def _table(name: str, table: Any, entries: int, a: Any) -> Values:
    check_tensor(name, table, S32, (entries,), a.device, contiguous=True)
    return {name: table.data_ptr()}


def _expected(rows: int | None, most: int) -> int:
    if rows is None:
        return most
    if not isinstance(rows, int) or rows < 1:
        raise ArgumentError("expected_rows", rows, "must be a positive integer")
    return min(rows, most)
