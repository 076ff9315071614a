"""What the statements that send D to global memory mean: see meaning.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import IRError
from ..ir import nodes as ir
from . import ops
from .footprint import bulk_rows

if TYPE_CHECKING:
    from .meaning import Walk


def _tma_store(w: Walk, s: ir.TmaStore) -> None:
    inner, outer = s.coords[:2]
    if (inner.base, outer.base) != ("tile.d_col", "tile.d_row") or inner.scale * outer.scale != 1:
        raise IRError(f"a store of D must be placed by the tile's row and column, not {s.coords}")
    box = w.kernel.map(s.tensor_map).box or (0, 0)
    row, col = _corner(w, s)
    row, col = row + outer.offset, col + inner.offset
    rect = (row, row + box[1], col, col + box[0])
    w.add(ops.Store, s, cells=w.cells(s), rect=rect, times=w.threads)


def _bulk_row_store(w: Walk, s: ir.BulkRowStore) -> None:
    row, end_row, *columns = _piece(w, s)
    for first, end in [(0, 1)] if w.single else bulk_rows(w.agent, end_row - row):
        rect = (row + first, row + end, *columns)
        w.add(ops.Store, s, cells=w.cells(s), rect=rect)


def _store_rows(w: Walk, s: ir.StoreRows) -> None:
    rect = _piece(w, s, s.column)
    w.add(ops.Rows, s, cells=w.cells(s), rect=rect, threads=w.threads)


def _store_tail(w: Walk, s: ir.StoreTail) -> None:
    rect = _piece(w, s, s.column)
    w.add(ops.Tail, s, cells=w.cells(s), rect=rect, threads=w.threads)


def _store_scales(w: Walk, s: ir.StoreScales) -> None:
    """Of all pieces at once, where the accumulator's rows are columns that share a scale."""
    d = w.kernel.buffer("smem_d")
    for wave in range(d.stages) if s.of == "columns" else (s.wave,):
        rect = _piece(w, replace(s, wave=wave))
        w.add(ops.Scales, s, rect=rect, threads=w.threads)


def _store_values(w: Walk, s: ir.StoreValues) -> None:
    """From registers: all of a warpgroup's threads share its piece out."""
    w.touch(s)
    w.add(ops.Rows, s, cells=(), rect=_piece(w, s), threads=w.threads)


def whole(w: Walk, s: ir.If) -> bool:
    """Whether D's rows go on to the end of this warpgroup's piece."""
    if not w.instance.rows:
        return w.tile not in w.instance.cut
    first, _ = _corner(w, s)
    return first + w.kernel.buffer("smem_d").rows <= w.instance.rows[w.agent.cta][w.tile]


def _corner(w: Walk, s: Any) -> tuple[int, int]:
    """Where the agent's part of D's tile, of a wave, begins."""
    return w.kernel.buffer("smem_d").corner(s.wave * w.kernel.consumers + w.agent.share)


def _piece(w: Walk, s: Any, column: int = 0) -> ops.Rect:
    """The rows and columns of D's tile that lie in the agent's piece of it, `column` into its part."""
    d = w.kernel.buffer("smem_d")
    row, col = _corner(w, s)
    return row, row + d.rows, col + column, col + column + d.cols


STORES: dict[type[ir.Stmt], Callable[[Walk, Any], None]] = {
    ir.TmaStore: _tma_store,
    ir.BulkRowStore: _bulk_row_store,
    ir.StoreRows: _store_rows,
    ir.StoreTail: _store_tail,
    ir.StoreScales: _store_scales,
    ir.StoreValues: _store_values,
}
