"""Kernel IR statements of operands that go from global memory straight into registers (docs/adr/0050-direct-weights.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from .blocks import Stmt
from .resources import PIECE, UNUSUAL

ROWS, COLUMNS = 16, 8  # of the sum that a warp's mma.sync adds to
LANES_OF_A_ROW = 4  # which of them have neighbouring pieces
SPAN = PIECE * LANES_OF_A_ROW  # bytes of a row that they have together
WORDS = PIECE // 4  # registers of a piece


@dataclass(frozen=True, kw_only=True)
class LoadFragments(Stmt):
    """dst = this thread's part of a K block of `tensor`, straight from global memory; what lies past K is 0, and past the tile's last K
    block all is. Rows past the tensor's last are that one again.

    by load: at once. by copy: on its way, a group of cp.async, into the thread's own place in `smem`, in whose stages K blocks take
    turns; nothing past the tile's last K block. by read: from there, when all but the `pending` newest groups have come.

    of rows: the 16 rows of the accumulator that the warp has. of columns: all of the tile's, the same in every warp. Of each eight of
    them lane i has row i / 4, and of every 64 bytes of it the 16 from 16 * (i % 4) on, in four registers: those of the first eight
    rows first. Which products an mma.sync adds at once follows from that; it is the same for both operands.
    block: next, the K block `distance` after ForK's; first, `distance` after the tile's first."""

    spelled_by: ClassVar[str] = "by"

    by: Literal["load", "copy", "read"] = field(default="load", metadata=UNUSUAL)  # take_slots
    dst: str = field(default="", metadata=UNUSUAL)
    smem: str = field(default="", metadata=UNUSUAL)
    tensor: str
    of: Literal["rows", "columns"]
    block: Literal["first", "next"]
    distance: int
    pending: int = field(default=0, metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class MultiplyFragments(Stmt):
    """dst += row_fragments @ column_fragments^T, a K block's, by mma.sync of 16 rows, 8 columns and 32 bytes of K. by halves:
    operands of 8 bits, which are FP16 to it, exactly, 16 bytes of K at a time."""

    spelled_by: ClassVar[str] = "by"
    wave: ClassVar[int] = 0  # a tile has one

    dst: str
    row_fragments: str
    column_fragments: str
    by: Literal["words", "halves"]


def pieces(k_bytes: int) -> int:
    """Of a row of a K block, each lane's."""
    return k_bytes // SPAN


def registers(rows: int, k_bytes: int) -> int:
    """That hold a thread's part of a K block of so many rows, of which a warp loads as many at once as mma.sync has columns."""
    return rows // COLUMNS * pieces(k_bytes) * WORDS
