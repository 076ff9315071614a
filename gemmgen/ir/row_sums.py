"""Epilogues whose D has one row for several of the product's, and windows of columns outside of which it is minus infinity."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import ArgumentError
from .expr import (
    ACC,
    Acc,
    BinOp,
    Expr,
    InGroup,
    InWindow,
    OfPair,
    OfRows,
    PerElement,
    PerRow,
    RowBound,
    parts,
    walk,
)
from .resources import Param

ROOM = (
    "d_room"  # the parameter that says how many columns a D has whose rows begin with their windows
)
ROW_SUM = "must be a window of one sum of rows, times or plus what no row of the product differs in"


def compact(params: Iterable[Param]) -> bool:
    """Whether a kernel of these parameters has a D whose rows begin with their windows."""
    return any(p.name == ROOM for p in params)


def fold_rows(e: Expr) -> int:
    """Rows of the product per row of D."""
    return e.rows if isinstance(e, OfRows) else max(map(fold_rows, parts(e)), default=1)


def windows(e: Expr) -> tuple[RowBound, ...]:
    """The bounds of the windows outside of which D is minus infinity: first, if they do not all begin at 0, and end; none if it has none."""
    return tuple(x for x in (e.first, e.end) if x) if isinstance(e, InWindow) else ()


def split_rows(e: Expr) -> tuple[Expr, Expr]:
    """What `e` sums rows of, and what it makes of the sum, as an expression of the accumulator."""
    match e:
        case OfRows(value, _):
            return value, ACC
        case InWindow(value, first, end):
            inner, outer = split_rows(value)
            return inner, InWindow(outer, first, end)
        case BinOp(op, lhs, rhs) if fold_rows(lhs) > 1:
            inner, outer = split_rows(lhs)
            return inner, BinOp(op, outer, rhs)
        case BinOp(op, lhs, rhs) if fold_rows(rhs) > 1:
            inner, outer = split_rows(rhs)
            return inner, BinOp(op, lhs, outer)
    raise ArgumentError("epilogue", repr(e), "must sum rows in a product with what is not summed")


def check_rows(e: Expr) -> None:
    """Raise ArgumentError unless `e` sums no rows and has no windows, or is a window of one sum of rows: outside of it nothing
    that differs between rows of the product, inside no pairs of columns, no elements of a tensor and no other sum."""
    kinds = [type(x) for x in walk(e)]
    sums, bounds = kinds.count(OfRows), kinds.count(InWindow)
    if not sums and not bounds and RowBound not in kinds:
        return
    if (sums, bounds, kinds.count(RowBound)) != (1, 1, len(windows(e))):
        raise ArgumentError("epilogue", repr(e), ROW_SUM)
    inner, outer = split_rows(e)
    if {PerElement, OfPair, InGroup}.intersection(kinds) or Acc not in map(type, walk(inner)):
        raise ArgumentError("epilogue", repr(e), ROW_SUM)
    if any(isinstance(x, PerRow) for x in walk(outer)) or sum(x == ACC for x in walk(outer)) != 1:
        raise ArgumentError("epilogue", repr(e), ROW_SUM)
