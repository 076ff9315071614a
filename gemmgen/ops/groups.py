"""What grouped functions share: the device's tables, and which rows are whose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import S32
from ..problem import Problem
from ..runtime.torch_tensors import check_tensor
from .calls import operand_shape
from .epilogue import Shape, Values
from .told import Groups


def masked(a: Any, shape: Shape, group_rows: Any, expected_rows: int | None) -> Groups:
    """Groups of `group_rows` of A's rows. Raises ArgumentError."""
    count = a.shape[0]
    table = _table("group_rows", group_rows, count, a)
    return Groups(count=count, rows=_expected(expected_rows, shape[0]), table=table)


def segments(
    p: Problem, a: Any, b: Any, row_groups: Any, group_ends: Any, alignment: int
) -> tuple[Problem, Shape, Groups]:
    """`p` with the grouping that shares A's rows, the shape, and the groups. Raises ArgumentError."""
    if (row_groups is None) == (group_ends is None):
        raise ArgumentError("row_groups, group_ends", None, "exactly one of them must be given")
    grouping = "ends" if row_groups is None else "rows"
    p = replace(p, grouping=grouping, alignment=alignment)
    shape, count = operand_shape(p, a, b), b.shape[0]
    if row_groups is None:
        table = _table("group_ends", group_ends, count, a)
    else:
        table = _table("row_groups", row_groups, shape[0], a)
    mean = max(1, -(-shape[0] // max(1, count)))
    return p, shape, Groups(count=count, rows=mean, table=table)


def _table(name: str, table: Any, entries: int, a: Any) -> Values:
    check_tensor(name, table, S32, (entries,), a.device, contiguous=True)
    return {name: table.data_ptr()}


def _expected(rows: int | None, most: int) -> int:
    if rows is None:
        return most
    if not isinstance(rows, int) or rows < 1:
        raise ArgumentError("expected_rows", rows, "must be a positive integer")
    return min(rows, most)
