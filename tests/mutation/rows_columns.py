"""Row 96: D staged in pieces that take turns in two places."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.rewrite import map_body
from gemmgen.ir.syncs import is_sync

from .mutant import edit
from .rows_protocol import drop, row, visit

PIECES = "dense/d_columns"
TURN = "(2 * slot + warpgroup) * Shared::D"  # the second place


def late_wait(s: ir.ForTiles) -> ir.ForTiles:
    """No wait but before a tile's first piece."""
    waits = [x for x in s.body if waiting(x)]
    return replace(s, body=tuple(x for x in s.body if x not in waits or x is waits[0]))


def waiting(s: ir.Stmt) -> bool:
    return is_if(s, "leader") and isinstance(s.body[0], ir.StoreWait)


def unsynced(nth: int):
    """Every `nth` of each piece's two syncs dropped: 0, between wait and write; 1, between write and store."""

    def change(s: ir.ForTiles) -> ir.ForTiles:
        syncs = [i for i, x in enumerate(s.body) if is_sync(x, "warpgroup")]
        gone = {at for i, at in enumerate(syncs) if i % 2 == nth}
        return replace(s, body=tuple(x for i, x in enumerate(s.body) if i not in gone))

    return change


def left_out(s: ir.ForTiles) -> ir.ForTiles:
    """The second piece is neither staged nor stored."""
    of = (ir.StageTile, ir.TmaStore, ir.StoreTail)

    def visit(x: ir.Stmt) -> ir.Stmt | tuple[()]:
        gone = isinstance(x, of) and (x.wave, x.column) == (0, 64)
        return () if gone else x

    return replace(s, body=map_body(s.body, visit))


def late_tail(s: ir.ForTiles) -> ir.ForTiles:
    """Each tail after the next piece but one was staged: what it reads may be that one's."""
    tails = [x for x in s.body if isinstance(x, ir.StoreTail)]
    body = [x for x in s.body if not isinstance(x, ir.StoreTail)]
    return replace(s, body=(*body, *tails))


def exchanged(s: ir.TmaStore | ir.StoreTail):
    """The first two pieces stored to each other's columns, whole and once each."""
    s = replace(s, column=64 - s.column)
    if isinstance(s, ir.StoreTail):
        return s
    return replace(s, coords=(replace(s.coords[0], offset=s.column), *s.coords[1:]))


def in_place(slot: int):
    return lambda s: replace(s, slot=slot)


ROWS = (
    row("96", PIECES, "nobody waits until a place was read", "P", ir=visit(ir.StoreWait, drop, pending=1)),
    row("96b", PIECES, "two groups of stores may be left", "P", ir=visit(ir.StoreWait, lambda s: replace(s, pending=2), pending=1)),
    row("96c", PIECES, "places are waited for in a tile's first piece only", "P", ir=visit(ir.ForTiles, late_wait, role="consumer")),
    row("96d", PIECES, "all pieces in the first place", "P",
        ir=lambda k: visit(ir.StageTile, in_place(0))(visit(ir.TmaStore, in_place(0))(visit(ir.StoreTail, in_place(0))(k)))),
    row("96e", PIECES, "all pieces staged in the first place", "P", ir=visit(ir.StageTile, in_place(0))),
    row("96f", PIECES, "all pieces stored from the first place", "P", ir=visit(ir.TmaStore, in_place(0))),
    row("96g", PIECES, "all tails read in the first place", "P", ir=visit(ir.StoreTail, in_place(0))),
    row("96h", PIECES, "no sync between the wait and the write", "P", ir=visit(ir.ForTiles, unsynced(0), role="consumer")),
    row("96i", PIECES, "no sync between the write and the store", "P", ir=visit(ir.ForTiles, unsynced(1), role="consumer")),
    row("96j", PIECES, "the first columns staged for the second piece", "P", ir=visit(ir.StageTile, lambda s: replace(s, column=0), column=64)),
    row("96k", PIECES, "the second piece stored to the first columns", "P",
        ir=visit(ir.TmaStore, lambda s: replace(s, coords=(replace(s.coords[0], offset=0), *s.coords[1:])), column=64)),
    row("96l", PIECES, "the second piece stored to the first columns, tail and all", "P",
        ir=lambda k: visit(ir.StoreTail, lambda s: replace(s, column=0), column=64)(
            visit(ir.TmaStore, lambda s: replace(s, column=0, coords=(replace(s.coords[0], offset=0), *s.coords[1:])), column=64)(k))),
    row("96m", PIECES, "two pieces stored to each other's columns", "P", ir=visit(ir.TmaStore | ir.StoreTail, exchanged)),
    row("96n", PIECES, "a piece is left out", "P", ir=visit(ir.ForTiles, left_out, role="consumer")),
    row("96o", PIECES, "tails are read when the tile is staged", "P", ir=visit(ir.ForTiles, late_tail, role="consumer")),
    row("96p", PIECES, "no fence for the async proxy", "P", ir=visit(ir.Fence, drop, of="async")),
    row("96q", PIECES, "the first wave's rows stored twice", "P", ir=visit(ir.TmaStore, lambda s: replace(s, wave=0), wave=1)),
    row("96r", PIECES, "the first registers staged for the second piece, in the text", "E", text=edit(("acc[i + 32 * slot]", "acc[i]"))),
    row("96s", PIECES, "the second piece staged in the first place, in the text", "E", text=edit((TURN, TURN.replace("2", "0", 1)))),
    row("96t", PIECES, "a tail read from the other place, in the text", "E", text=edit(("block = 2 * slot + warpgroup", "block = warpgroup"))),
    row("96u", PIECES, "two groups of stores may be left, in the text", "E", text=edit(("store_wait_read<1>", "store_wait_read<2>"), count=0)),
)  # fmt: skip
