"""Which rows of D a grouped launch writes, and with what."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..ir.groupings import GROUPINGS, OF_SIZES, Layout, segments, split_side
from ..problem import Problem, depth_step

Rows = npt.NDArray[np.bool_]


def some(problem: Problem, shape: tuple[int, int, int]) -> Layout:
    """Groups to try a kernel with: a whole one (half of A's rows where they share them), one of no
    rows, and one that ends inside a tile. Where they split K, of K."""
    g, rows = GROUPINGS[problem.grouping], split_side(problem.grouping, shape)
    if g.depths:
        step = depth_step(problem)
        sizes = (rows // 2 // step * step, 0, rows // 3 // step * step)
        return OF_SIZES[problem.grouping](rows, sizes, 0)
    whole = rows // 2 + 1 if g.aligned else rows
    sizes = (min(whole, rows), 0, max(1, rows // 3))
    return OF_SIZES[problem.grouping](rows, sizes, problem.alignment * g.aligned)


def owned(problem: Problem, rows: int, layout: Layout, gap: int = 0) -> Rows:
    """Which rows of D some group has: bool [M], or [G * (M + gap)], all groups' counted through."""
    own = GROUPINGS[problem.grouping].outputs
    pitch = rows + gap
    mine = np.zeros(layout.groups * pitch if own else rows, np.bool_)
    for s in segments(problem.grouping, rows, layout, problem.alignment):
        at = s.group * pitch * own
        mine[at + s.first : at + s.end] = True
    return mine


def cleared(problem: Problem, rows: int, layout: Layout, gap: int = 0) -> Rows:
    """Which rows of D belong to no group, and come out as zeros all the same."""
    return ~owned(problem, rows, layout, gap) & (problem.grouping == "rows")
