"""What the pictures of shared memory have in common."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.nodes import Smem
from .banks import Banks
from .page import Cell, Grid, Table, count

LINE = 128  # bytes: all banks once
LINES, ROWS, PIECES = 16, 16, 8  # of a picture: memory lines, rows of a tile, pieces of a row
CHUNK = 16  # bytes: what a swizzle moves as one
BANKS = tuple(f"b{b}" for b in range(0, 32, 4))  # the first of each 16 bytes


def buffer(s: Smem) -> tuple[tuple[str, str], ...]:
    swizzle = f"{s.swizzle} bytes" if s.swizzle else "none"
    copies = f"; {s.copies} copies, one for each consumer warpgroup" * (s.copies > 1)
    return (
        (
            "buffer",
            f"{s.name}: {s.stages} x {count(s.stage_bytes)} bytes from {count(s.offset or 0)} on{copies}",
        ),
        (
            "tile",
            f"{s.rows} x {s.cols} {s.dtype.name}, {s.row_bytes} bytes a row, {s.pad or 0} of them padding",
        ),
        ("swizzle", f"{swizzle}; {s.slabs} slab(s) of {s.slab_bytes} bytes a row"),
    )


def conflicts(title: str, rows: list[tuple[str, Banks]], note: str) -> Table:
    cells = tuple(
        (what, count(b.accesses), count(b.wavefronts), count(b.fewest), count(b.conflicts))
        for what, b in rows
    )
    columns = ("access", "times", "wavefronts", "fewest possible", "conflicts")
    return Table(title=title, columns=columns, rows=cells, note=note)


def memory(s: Smem, size: int, what: str, cell: Callable[[int], Cell], note: str) -> Grid:
    """The first lines of `size` bytes from the buffer's start on, 16 bytes a cell, by their address."""
    start = s.offset or 0
    lines = range(start, start + min(LINES * LINE, size), LINE)
    return Grid(
        title=f"Shared memory of {what}, the first {len(lines)} lines of 128 bytes",
        columns=BANKS,
        rows=tuple(f"+{line - start}" for line in lines),
        cells=tuple(tuple(cell(at) for at in range(line, line + LINE, CHUNK)) for line in lines),
        note=f"Each cell is 16 bytes, below the first of their banks, and names the first element in it. {note}",
    )
