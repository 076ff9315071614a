"""Sums of rows, and windows of columns outside of which D is minus infinity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codes import Codes, encode
from ..errors import VerificationError
from ..ir.expr import RowBound
from ..ir.row_sums import windows
from ..problem import Problem
from .engines import Array, Engine

Bounds = npt.NDArray[np.int32]
Numbers = Callable[[tuple[int, ...]], npt.NDArray[Any]]  # of a shape, at most 2 in size


def drawn_bound(x: RowBound, rows: int, columns: int, numbers: Numbers) -> Bounds:
    """Of windows: none, some columns or all, from before the middle to anywhere; of whatever size the numbers are, at most 2."""
    share = (numbers((rows,)).astype(np.float64) + 2) / 4
    where = {"first": share * columns / 2, "end": share * columns}[x.which]
    bounds: Bounds = np.floor(where).clip(0, columns).astype(np.int32)
    return bounds


def from_windows(codes: Codes, problem: Problem, given: Mapping[str, Any], fill: int) -> Codes:
    """The product's columns of a D whose rows begin with their windows, [rows, N] of as many columns: minus infinity outside of them. Raises VerificationError if
    what lies behind a window's columns is no longer the byte `fill`."""
    first, end = (
        np.asarray(given[x.name], np.int64).reshape(-1, 1) for x in windows(problem.epilogue)
    )
    columns = np.arange(codes.shape[1])[None, :]
    length = np.clip(np.minimum(end, codes.shape[1]) - first, 0, None)
    written = (codes.view(np.uint8).reshape(*codes.shape, -1) != fill).any(2) & (columns >= length)
    if written.any():
        row, column = np.argwhere(written)[0]
        text = f"{int(written.sum())} elements behind windows were overwritten"
        raise VerificationError(f"{text}; first in row {row}, column {column} of D")
    moved = np.take_along_axis(codes, np.clip(columns - first, 0, codes.shape[1] - 1), 1)
    outside = encode(np.array([-np.inf]), problem.d)
    found: Codes = np.where((columns >= first) & (columns < first + length), moved, outside)
    return found


def by_row_of_d(x: Array, rows: int) -> Array:
    """[M / rows, rows, N] of [M, N]."""
    return x.reshape(x.shape[0] // rows, rows, x.shape[1])


def windowed(x: Array, first: Array | int, end: Array, engine: Engine) -> Array:
    """Minus infinity outside of [first, end); these are [M, 1], or first a number."""
    columns = engine.lift(np.arange(x.shape[1], dtype=np.float64)[None, :])
    inside = (columns >= first) & (columns < end)
    return engine.where(inside, x, -np.inf)
