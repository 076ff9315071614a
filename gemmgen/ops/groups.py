"""Which of two tables says whose rows are whose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import ArgumentError
from ..problem import Problem


def segments(p: Problem, row_groups: Any, group_ends: Any, alignment: int) -> tuple[Problem, Any]:
    """`p` with the grouping that shares A's rows as the table given says, and that table. Raises ArgumentError."""
    if (row_groups is None) == (group_ends is None):
        raise ArgumentError("row_groups, group_ends", None, "exactly one of them must be given")
    grouping, table = ("ends", group_ends) if row_groups is None else ("rows", row_groups)
    return replace(p, grouping=grouping, alignment=alignment), table
