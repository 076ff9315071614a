"""A grouped launch as the single GEMMs it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..ir.expr import PerColumn, PerElement, PerRow, RowBound, arguments
from ..ir.groupings import GROUPINGS, Depth, Segment, depths, segments
from ..problem import Problem
from ..recipes import SCALE_BLOCK
from .inputs import Operands
from .stacking import joined


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One GEMM of a grouped launch. rows: of D, all groups' rows counted through (`pitch` per group)."""

    problem: Problem
    operands: Operands
    rows: slice


def parts(problem: Problem, x: Operands, gap: int, step: int = 1) -> Iterator[Part]:
    """The GEMMs that `x` stands for, those of no rows left out, where D has `gap` rows between two groups. step: of K, as a K block; where groups
    are summed each has whole ones."""
    single = replace(problem, grouping="none", indexed=False, paged=False)
    pitch = x.d_m + gap
    if x.summed:
        x = replace(x, a=joined(x.a, step), b=joined(x.b, step), summed=False)
    summed = depths(problem.grouping, x.shape[2], x.layout)
    for s in segments(problem.grouping, x.shape[0], x.layout, problem.alignment):
        at = s.group * pitch * GROUPINGS[problem.grouping].outputs
        rows = slice(at + s.first // x.fold_rows, at + s.end // x.fold_rows)
        if s.end > s.first:
            operands = one(problem, x, s, summed[s.group])
            yield Part(problem=single, operands=operands, rows=rows)


def one(problem: Problem, x: Operands, s: Segment, d: Depth) -> Operands:
    """Rows and K of a group, as operands of a GEMM."""
    g, rows = GROUPINGS[problem.grouping], slice(s.first, s.end)
    k, blocks = slice(d.first, d.end), slice(d.first // SCALE_BLOCK, -(-d.end // SCALE_BLOCK))

    def of_rows(values: Any, grouped: bool = g.outputs) -> Any:
        return (values[s.group] if grouped else values)[rows]

    def of_columns(values: Any, grouped: bool = g.vectors) -> Any:
        return values[s.group] if grouped else values

    def whole(value: Any) -> Any:
        return value

    cut: dict[type, Callable[[Any], Any]] = {
        PerRow: of_rows,
        RowBound: partial(of_columns, grouped=g.outputs),  # of rows of D, of which a group has all
        PerElement: of_rows,
        PerColumn: of_columns,
    }
    kinds = {a.name: cut.get(type(a), whole) for a in arguments(problem.value)}
    return Operands(
        a=of_rows(x.a, g.rows and not g.summed)[:, k],
        b=of_columns(x.b, g.columns and not g.summed)[:, k],
        scale_a=None if x.scale_a is None else of_rows(x.scale_a, g.rows)[:, blocks],
        scale_b=None if x.scale_b is None else of_columns(x.scale_b, g.columns)[:, blocks],
        rows_per_scale=x.rows_per_scale,
        fold=x.fold,
        fold_rows=x.fold_rows,
        arguments={name: kinds[name](value) for name, value in x.arguments.items()},
    )
