"""Kernel IR statements of rows that come by index (docs/adr/0063-rows-by-index.md)."""

from __future__ import annotations

from dataclasses import dataclass

from .blocks import Stmt
from .resources import PIECE, Coord, Param

# Parameters: which row of A each row of the product is of, how many indices stand for one row, and how many rows A has.
ROWS, TOP, SOURCES = "rows", "top", "sources"
PARAMS = (
    Param(name=ROWS, ctype="const int*"),
    Param(name=TOP, ctype="int"),
    Param(name=SOURCES, ctype="int"),
)
THREADS = 128  # of the producer, which share out the pieces of a tile's rows
SPAN = 128  # bytes of a row in a stage
LANES_OF_A_ROW = SPAN // PIECE
AT_ONCE = THREADS // LANES_OF_A_ROW  # rows of which the threads have a piece each


@dataclass(frozen=True, kw_only=True)
class LoadIndices(Stmt):
    """dst = of the tile's `count` rows those of which this thread copies pieces: register i is of the (16 * i + t / 8)-th, t the thread's
    number in its warpgroup. It is the row of A, `tensor`[row] / top, or -1: from row M on, and where A has no such row."""

    dst: str
    tensor: str
    count: int


@dataclass(frozen=True, kw_only=True)
class CopyRows(Stmt):
    """This thread's pieces of a K block of `tensor`, 16 bytes of each of its rows, on their way into the stage, swizzled, as a group of
    cp.async: the (t % 8)-th piece of each row. What lies past K is 0, and all of a row that is -1. k: where the K block begins. begun: a register
    that counts groups, up to `most`."""

    tensor: str
    smem: str
    indices: str
    k: Coord
    begun: str
    most: int


@dataclass(frozen=True, kw_only=True)
class WaitCopies(Stmt):
    """Wait until all but the `pending` newest of this thread's groups of copies have come."""

    pending: int


def held(count: int) -> int:
    """Registers of a thread for the indices of its rows."""
    return -(-count // AT_ONCE)
