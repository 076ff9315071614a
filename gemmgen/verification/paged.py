"""Operands whose rows of B come by page: which they are, and what a launch finds stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codes import Codes
from ..ir.expr import Expr, PerColumn, arguments
from .indexed import NAN_BYTE

SPARE = 2  # pages that no group has


def by_page(x: Any, value: Expr, seed: int, rows_of_page: int) -> Any:
    """Pages in any order, and some that are nobody's. value: an expression, whose arguments per column lie in them too."""
    rng = np.random.Generator(np.random.PCG64(seed))
    groups, rows = x.b.shape[:2]
    each = -(-rows // rows_of_page)
    pages = rng.permutation(groups * each + SPARE)[: groups * each].reshape(groups, each)
    named = tuple(a.name for a in arguments(value) if isinstance(a, PerColumn))
    return replace(x, pages=pages.astype(np.int32), in_pages=named, page_rows=rows_of_page)


def in_pages(x: Any, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[pages, rows of one, ...] of [G, N, ...]: NaN in pages that are nobody's, and behind a group's last row. What a number of no page stands for is
    nowhere."""
    found = np.empty((x.pages.size + SPARE, x.page_rows, *values.shape[2:]), values.dtype)
    found.view(np.uint8)[:] = NAN_BYTE
    for group, numbers in enumerate(x.pages):
        for i, page in enumerate(numbers):
            rows = values[group, i * x.page_rows : (i + 1) * x.page_rows]
            if 0 <= page < len(found):
                found[page, : len(rows)] = rows
    return found


def stored_b(x: Any) -> Codes:
    """B as a launch finds it."""
    b: Codes = x.b if x.pages is None else in_pages(x, x.b)
    return b
