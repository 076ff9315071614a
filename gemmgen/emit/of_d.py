"""Numbers of D, and how threads that store some spell them."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..ir.nodes import Kernel, StoreTail
from ..ir.places import piece, total
from ..ir.spelling import MINUS_INFINITY, folded, window
from ..ir.stores import E4M3_MAX, LEAST_AMAX
from .numbers import Number
from .wire import PAIRS


def numbers_of_d(kernel: Kernel) -> dict[str, Any]:
    """What templates may name. of_d: a float as one number of D. window: of a store of windows, their bounds."""
    pack = PAIRS.get(kernel.buffer("smem_d").dtype)
    return {
        "of_d": (f"uint16_t({pack[0]}({{}}, 0))" if pack else "{}").format,
        "window": partial(window, kernel),
        "minus_infinity": MINUS_INFINITY,
        "e4m3_max": E4M3_MAX,
        "least_amax": LEAST_AMAX,
        "d_columns": folded(kernel, "shape_n"),
        "d_col": folded(kernel, "col"),
        "own_row": partial(own_row, kernel),
    }


def own_row(kernel: Kernel, i: Number) -> str:
    """Of sum `i` of a lane, of two rows of D, that its row is one of the tile's: of an odd number the last is alone."""
    rows = kernel.block.d_m
    return f"{total(i * 2, 'lane / 2 % 2')} < {rows} && " if rows % 2 else ""


def column_of_tail(kernel: Kernel, s: StoreTail) -> str:
    """Of the columns that are left of D's rows this thread's, in the tensor that it stores to."""
    return "i % columns" if s.own else f"{piece(kernel, s).column} + col"
