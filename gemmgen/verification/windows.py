"""Sums of rows, and windows of columns outside of which D is minus infinity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.expr import RowBound
from .engines import Array, Engine

Bounds = npt.NDArray[np.int32]
Numbers = Callable[[tuple[int, ...]], npt.NDArray[Any]]  # of a shape, at most 2 in size


def drawn_bound(x: RowBound, rows: int, columns: int, numbers: Numbers) -> Bounds:
    """Of windows: none, some columns or all, from before the middle to anywhere; of whatever size the numbers are, at most 2."""
    share = (numbers((rows,)).astype(np.float64) + 2) / 4
    where = {"first": share * columns / 2, "end": share * columns}[x.which]
    bounds: Bounds = np.floor(where).clip(0, columns).astype(np.int32)
    return bounds


def by_row_of_d(x: Array, rows: int) -> Array:
    """[M / rows, rows, N] of [M, N]."""
    return x.reshape(x.shape[0] // rows, rows, x.shape[1])


def windowed(x: Array, first: Array | int, end: Array, engine: Engine) -> Array:
    """Minus infinity outside of [first, end); these are [M, 1], or first a number."""
    columns = engine.lift(np.arange(x.shape[1], dtype=np.float64)[None, :])
    inside = (columns >= first) & (columns < end)
    return engine.where(inside, x, -np.inf)
