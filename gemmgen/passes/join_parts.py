"""Put the statements of a tile, and of a K block, one after the other: no pass asks any more what they are for."""

from __future__ import annotations

from ..ir.blocks import Parts
from ..ir.nodes import Kernel
from ..ir.rewrite import map_stmts
from ..target import Target


def join_parts(kernel: Kernel, target: Target) -> Kernel:
    """Leave no TileBody and no Piece. The IR's text never shows them: it stays the same."""
    return map_stmts(kernel, lambda s: s.body if isinstance(s, Parts) else s)
