"""Spell the epilogue: stmatrix or plain stores into shared memory, TMA boxes or rows out of it."""

from __future__ import annotations

from dataclasses import replace

from ..ir.expr import APPROXIMATE, Expr, PerElement, arguments, functions
from ..ir.heads import gaps_of
from ..ir.nodes import (
    BulkRowStore,
    Coord,
    Evaluate,
    If,
    Kernel,
    PrefetchMap,
    Smem,
    StageTile,
    Stmt,
    StoreRows,
    StoreTail,
    StoreTile,
    StoreWait,
    TmaMap,
    TmaStore,
)
from ..ir.rewrite import map_stmts
from ..ir.stores import By
from ..target import Target

# By D's element size and how its pieces lie.
STAGES: dict[tuple[int, str], By] = {
    (1, "m"): "byte_pairs",
    (2, "m"): "matrix",
    (4, "m"): "pairs",
    (2, "n"): "matrix_transposed",
    (4, "n"): "elements_transposed",
    (1, "n"): "elements_transposed",
}
FOLDED: dict[str, By] = {"m": "elements", "n": "folded_transposed"}


def choose_stores(kernel: Kernel, target: Target) -> Kernel:
    """Stage by matrices or by pairs as D is wide (by elements where its columns are
    folded), or what stores the transpose where D's rows are the accumulator's columns (Smem.along),
    and one TmaStore per slab, or BulkRowStore for padded rows, which a dense TMA box cannot skip over.
    Where a ragged group ends inside a piece, a box would write past it: StoreRows. Where D's columns have gaps, boxes lie in what is
    between them, and rows, of whole heads, have no rest for a StoreTail."""
    d = kernel.buffer("smem_d")
    by_rows, ragged = bool(d.pad), kernel.groups.ragged
    gaps = gaps_of(kernel.maps).mid
    by: By = STAGES[d.dtype.bytes, d.along] if kernel.block.fold == 1 else FOLDED[d.along]

    def visit(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        match stmt:
            case StageTile():
                return replace(stmt, by=by, pace=_pace(stmt.value))
            case Evaluate():
                return replace(stmt, pace=_pace(stmt.value))
            case StoreTile() if not by_rows:
                boxes = _boxes(d, stmt, kernel.map(stmt.tensor_map))
                return (If(when="whole", wave=stmt.wave, body=boxes),) if ragged else boxes
            case StoreTail() if gaps:
                return ()
            case StoreTail() if ragged and not by_rows:
                same = ("tensor", "smem", "wave", "add", "column", "slot")
                rows = StoreRows(**{name: getattr(stmt, name) for name in same})
                return If(when="cut", wave=stmt.wave, body=(rows,)), stmt
        return stmt

    kernel = map_stmts(kernel, visit)
    return _row_stores(kernel) if by_rows else kernel


def _pace(value: Expr) -> int:
    """What keeps ptxas from computing, or loading, a whole wave at once: with all its registers full
    it would spill."""
    if not APPROXIMATE.isdisjoint(functions(value)):
        return 8
    return 16 if any(isinstance(x, PerElement) for x in arguments(value)) else 0


def _boxes(d: Smem, s: StoreTile, m: TmaMap) -> tuple[Stmt, ...]:
    first = Coord(base="tile.d_col", heads=m.heads)
    others = (Coord(base="tile.d_row"), *(Coord(base="tile.group"),) * m.grouped)
    return tuple(
        TmaStore(
            tensor_map=s.tensor_map,
            smem=s.smem,
            wave=s.wave,
            coords=(replace(first, offset=s.column + slab * d.slab_cols), *others),
            offset=slab * d.slab_stride,
            add=s.add,
            column=s.column,
            slot=s.slot,
        )
        for slab in range(d.slabs)
    )


def _row_stores(kernel: Kernel) -> Kernel:
    """Every thread sends its own row, so every thread owns a bulk group; D needs no tensor map."""

    def visit(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        match stmt:
            case StoreTile():
                return BulkRowStore(tensor="d", smem=stmt.smem, wave=stmt.wave, add=stmt.add)
            case PrefetchMap(tensor_map="map_d"):
                return ()
            case If(when="leader", body=(StoreWait() | BulkRowStore(), *_)):
                return stmt.body
        return stmt

    maps = tuple(m for m in kernel.maps if m.tensor != "d")
    return replace(map_stmts(kernel, visit), maps=maps)
