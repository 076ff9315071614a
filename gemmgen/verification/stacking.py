"""How groups' tensors are made of each group's, or of what all of them are the parts of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..codes import Codes
from ..ir.expr import Argument, PerColumn, PerElement, PerRow, RowBound
from ..ir.groupings import GROUPINGS
from ..problem import Problem
from .drawn_arguments import Values


def stack(values: list[Values | None], grouped: bool) -> Values | None:
    if values[0] is None:
        return None
    return np.stack([x for x in values if x is not None]) if grouped else values[0].copy()


def stacked(
    problem: Problem, x: Argument, drawn: Sequence[Mapping[str, Any]]
) -> float | Values | Codes:
    """An epilogue's argument, of those of each group."""
    g = GROUPINGS[problem.grouping]
    of_rows = dict.fromkeys((PerRow, PerElement, RowBound), g.outputs)
    kinds: dict[type, bool] = {**of_rows, PerColumn: g.vectors}
    values = [d[x.name] for d in drawn]
    if kinds.get(type(x), False):
        return np.stack([np.asarray(v) for v in values])
    found: float | Values | Codes = values[0]
    return found


def dealt(codes: Codes, groups: int) -> Codes:
    """[groups, rows, K / groups] of [rows, K]: each group has a stretch of K."""
    rows, k = codes.shape
    return np.ascontiguousarray(codes.reshape(rows, groups, k // groups).swapaxes(0, 1))


def joined(codes: Codes, step: int) -> Codes:
    """[rows, K] of [groups, rows, k]: one group's k after the other's, each with zeros up to a multiple of `step`."""
    groups, rows, k = codes.shape
    whole = np.zeros((rows, groups, -(-k // step) * step), codes.dtype)
    whole[:, :, :k] = codes.swapaxes(0, 1)
    return whole.reshape(rows, -1)
