"""Rows of A that come by index: what a grouped function is given of them, and what its launch is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..errors import ArgumentError
from ..ir.counts import INT_LIMIT
from ..ir.dtypes import S32
from ..ir.indices import ROWS, TOP
from ..problem import Problem
from ..runtime.torch_tensors import check_tensor
from .epilogue import Shape, Values
from .tensors import check_number


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The array of indices, and how many stand for one row."""

    rows: Any
    top: int


@dataclass(frozen=True, kw_only=True)
class Product:
    """In the place of A, whose rows are taken: the rows that the product has."""

    shape: tuple[int, int]
    device: Any


def taken(p: Problem, rows: Any, top: int) -> tuple[Problem, Taken | None]:
    """`p` with rows by index, and which, if any are given. Raises ArgumentError."""
    if rows is not None:
        if p.grouping != "ends":
            raise ArgumentError("rows", type(rows).__name__, "needs group_ends, not row_groups")
        p = replace(p, indexed=True)
    return p, asked(p, rows, top)


def asked(p: Problem, rows: Any, top: int) -> Taken | None:
    """The rows that a problem by index is given; None of another, which takes none. Raises ArgumentError."""
    if p.indexed and rows is None:
        raise ArgumentError("rows", None, "must be given: problem.indexed has rows of a by index")
    if p.indexed:
        check_number("top", top, 1, INT_LIMIT - 1)
        return Taken(rows=rows, top=top)
    if rows is not None:
        raise ArgumentError("rows", type(rows).__name__, "is of a problem with indexed=True")
    if top != 1:
        raise ArgumentError("top", top, "is of rows, which are not given")
    return None


def of_product(t: Taken | None, a: Any, shape: Shape) -> tuple[Any, Shape, Values]:
    """What stands for A where its rows are those of the product, the product's shape, and what a kernel is told. Raises ArgumentError."""
    if t is None:
        return a, shape, {}
    (m,) = check_tensor(ROWS, t.rows, S32, (None,), a.device, contiguous=True)
    sources, n, k = shape
    if sources * t.top >= INT_LIMIT:  # -1 over top, unsigned, is then no longer behind them
        allowed = f"must be less than {-(-INT_LIMIT // sources)}: {sources} rows of a times top are counted in int32"
        raise ArgumentError("top", t.top, allowed)
    values = {ROWS: t.rows.data_ptr(), TOP: t.top}
    return Product(shape=(m, k), device=a.device), (m, n, k), values
