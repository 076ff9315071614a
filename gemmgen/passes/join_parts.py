"""Put the statements of a tile, and of a K block, one after the other: no pass asks any more what they are for."""

from __future__ import annotations

from dataclasses import replace

from ..ir.blocks import ForTiles, Parts, Stmt, TileBody
from ..ir.nodes import Kernel
from ..ir.rewrite import map_stmts
from ..target import Target


def join_parts(kernel: Kernel, target: Target) -> Kernel:
    """Leave no TileBody and no Piece: the IR's text never shows them. Where a run's tiles have something alike, they
    are taken in a loop of their own, behind what is done once for them: there the compiler has the ring in uniform registers."""
    return map_stmts(kernel, _joined)


def _joined(s: Stmt) -> Stmt | tuple[Stmt, ...]:
    match s:
        case ForTiles(body=(TileBody(run=alike) as tile,)):
            each = ForTiles(of="run", body=replace(tile, run=()).body)
            return replace(s, of="runs", body=(*alike, each))
        case Parts() if not (isinstance(s, TileBody) and s.run):
            return s.body
    return s
