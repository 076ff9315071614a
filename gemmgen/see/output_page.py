"""D's tile as a page: who stages which element where, and the boxes that leave."""

from __future__ import annotations

from itertools import groupby

from ..ir.nodes import Kernel
from .banks import bank, total
from .output import CHUNK, WARP, Output, Store, output
from .page import Cell, Facts, Grid, Page, Table, count
from .pictures import PIECES, ROWS, buffer, conflicts, memory


def output_page(kernel: Kernel) -> Page:
    """D's tile."""
    o = output(kernel)
    leaves = f"{len(o.boxes)} TMA boxes" if o.boxes else "row by row"
    items = (*buffer(o.smem), ("staged by", o.statement), ("leaves by", leaves))
    facts = Facts(title="Buffer", items=items)
    by_kind = groupby(sorted(o.stores, key=lambda s: s.instruction), key=lambda s: s.instruction)
    rows = [(name, total(s.banks for s in stores)) for name, stores in by_kind]
    note = "Of all warps that share a tile. A warp's wide accesses go in groups of lanes of 128 bytes; each group takes a turn or more."
    blocks = (facts, _pieces(o), _writers(o), conflicts("Bank conflicts", rows, note), _out(o))
    return Page(title=f"D of {kernel.name}", blocks=blocks)


def _pieces(o: Output) -> Grid:
    """Lines of the first piece as they lie."""
    d = o.smem
    first = o.where[: d.rows, : d.cols]
    unit = CHUNK // d.dtype.bytes
    held = {
        int(first[row, column]): (row, column)
        for row in range(d.rows)
        for column in range(0, d.cols, unit)
    }

    def cell(at: int) -> Cell:
        if at not in held:
            return Cell(tip=f"address {at}: padding")
        row, column = held[at]
        return Cell(label=f"r{row} c{column}", hue=column // unit, tip=f"address {at}")

    note = "Row and column are D's tile's; an empty cell is padding."
    return memory(d, d.stage_bytes, "D's first piece", cell, note)


def _writers(o: Output) -> Grid:
    """The first rows of the tile: who gives the address of each piece, and from which register on."""
    mine = [s for s in o.stores if (s.wave, s.warpgroup) == (0, 0)]
    unit = mine[0].size // o.smem.dtype.bytes
    held: dict[tuple[int, int], tuple[Store, int, int]] = {}
    for s in mine:
        for lane, (row, column, at) in enumerate(zip(s.row, s.column, s.where, strict=True)):
            if row < ROWS and column < PIECES * unit:
                held[int(row), int(column)] = (s, lane, int(at))

    def cell(row: int, column: int) -> Cell:
        s, lane, at = held[row, column]
        thread, (first, end) = WARP * s.warp + lane, s.registers
        tip = f"address {at}, bank {bank(at)}: {s.instruction} of registers {first} to {end - 1}"
        return Cell(label=f"T{thread} {first}", hue=lane // 8, tip=tip)

    rows, columns = (sorted({key[side] for key in held}) for side in (0, 1))
    return Grid(
        title="Who writes the tile: thread and first register",
        columns=tuple(f"c{c}" for c in columns),
        rows=tuple(f"r{r}" for r in rows),
        cells=tuple(tuple(cell(r, c) for c in columns) for r in rows),
        note=f"Each cell is the {mine[0].size} bytes at the address that a thread of warpgroup 0 gives. The colour is the group of eight lanes.",
    )


def _out(o: Output) -> Table:
    start = o.smem.offset or 0
    rows = tuple(
        (
            str(b.row),
            str(b.column),
            f"{b.where.shape[1] * CHUNK} x {b.where.shape[0]}",
            count(int(b.where.min()) - start),
        )
        for b in o.boxes
    )
    columns = ("first row", "first column", "bytes x rows", "bytes into the buffer")
    note = "" if rows else "Rows leave one by one."
    if o.smem.copies > 1:
        further = f"Of warpgroup 0; the next one's copy lies {count(o.smem.copy_bytes)} bytes on."
        note = f"{note} {further}".strip()
    return Table(title="Boxes that leave", columns=columns, rows=rows, note=note)
