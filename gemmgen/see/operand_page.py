"""An operand as a page: boxes, swizzled bytes, the order in which wgmma reads."""

from __future__ import annotations

from ..ir.nodes import Kernel
from .banks import bank
from .operand import CHUNK, CORE, Operand, Read, operand
from .page import Cell, Facts, Grid, Page, Table, count
from .pictures import PIECES, ROWS, buffer, conflicts, memory


def operand_page(kernel: Kernel, name: str) -> Page:
    """name: "a" or "b"."""
    o = operand(kernel, name)
    maps = [m for m in kernel.maps if m.smem == o.smem.name]
    names = (str(maps[0].outer), str(maps[0].inner)) if maps else (o.smem.along, "k")
    read = "wgmma reads it MN-major" if o.major == "mn" else "wgmma reads it K-major"
    facts = Facts(title="Buffer", items=(*buffer(o.smem), ("read", read)))
    note = (
        "A core matrix is 8 pieces of 16 bytes, which the banks serve in one turn if no two share a bank. "
        "How the hardware groups its reads is not documented; this is its layout's unit."
    )
    banks = conflicts("Bank conflicts", [("core matrices that wgmma reads", o.banks)], note)
    blocks = (
        facts,
        _boxes(o, "TMA boxes" if maps else "Rows that threads copy"),
        _memory(o, names),
        _rows(o, names),
        _order(o, names),
        _reads(o),
        banks,
    )
    return Page(title=f"{name.upper()} of {kernel.name}", blocks=blocks)


def _boxes(o: Operand, what: str) -> Table:
    rows = tuple(
        (
            b.source,
            "all" if b.rank is None else str(b.rank),
            f"{b.where.shape[1] * CHUNK} x {b.where.shape[0]}",
            str(b.row),
            str(b.byte // o.smem.dtype.bytes),
            count(b.offset),
        )
        for b in o.boxes
    )
    columns = ("from", "rank", "bytes x rows", "first row", "first column", "bytes into the stage")
    return Table(title=f"{what}, of one K block", columns=columns, rows=rows)


def _steps(o: Operand) -> dict[int, int]:
    """The wgmma step that reads each 16 bytes, by address."""
    return {int(at): r.step for r in o.reads for core in r.core_matrices for at in core}


def _memory(o: Operand, names: tuple[str, str]) -> Grid:
    """Lines of memory as they lie, each with what it holds."""
    steps, held, size = _steps(o), _held(o), o.smem.dtype.bytes

    def cell(at: int) -> Cell:
        row, byte = held[at]
        label = f"{names[0]}{row} {names[1]}{byte // size}"
        tip = f"address {at}: {label}, read by step {steps[at]}"
        return Cell(label=label, hue=steps[at], tip=tip)

    note = "Its colour is the wgmma step that reads it."
    return memory(o.smem, o.smem.stage_bytes, "stage 0", cell, note)


def _held(o: Operand) -> dict[int, tuple[int, int]]:
    """Row and byte of the tile, by address, of every 16 bytes."""
    row_bytes, pieces = o.where.shape[1], o.where.reshape(-1)[::CHUNK]
    return {int(at): divmod(i * CHUNK, row_bytes) for i, at in enumerate(pieces)}


def _rows(o: Operand, names: tuple[str, str]) -> Grid:
    """Rows of the tile, each piece with the bank where it begins."""
    steps, size = _steps(o), o.smem.dtype.bytes
    pieces = range(0, min(PIECES * CHUNK, o.where.shape[1]), CHUNK)

    def cell(row: int, byte: int) -> Cell:
        at = int(o.where[row, byte])
        return Cell(label=f"b{bank(at)}", hue=steps[at], tip=f"address {at}, step {steps[at]}")

    rows = range(min(ROWS, o.where.shape[0]))
    return Grid(
        title=f"The tile's first {len(rows)} rows: the first bank of each 16 bytes",
        columns=tuple(f"{names[1]}{byte // size}" for byte in pieces),
        rows=tuple(f"{names[0]}{row}" for row in rows),
        cells=tuple(tuple(cell(row, byte) for byte in pieces) for row in rows),
        note="Eight rows of one column are a core matrix: eight different banks are one turn.",
    )


def _order(o: Operand, names: tuple[str, str]) -> Grid:
    """In tile coordinates, which core matrix of which step lies where, of the first reader."""
    size, held = o.smem.dtype.bytes, _held(o)
    first = _reader(o.reads[0])
    found: dict[tuple[int, int], Cell] = {}
    for r in (r for r in o.reads if _reader(r) == first):
        for number, core in enumerate(r.core_matrices):
            row, byte = min(held[int(at)] for at in core)
            tip = f"step {r.step}, core matrix {number}, from address {int(core.min())} on"
            found[row // CORE, byte] = Cell(label=f"{r.step}.{number}", hue=r.step, tip=tip)
    groups = sorted({group for group, _ in found})[:ROWS]
    pieces = sorted({byte for _, byte in found})[:PIECES]
    return Grid(
        title="The order in which wgmma reads: step and core matrix",
        columns=tuple(f"{names[1]}{byte // size}" for byte in pieces),
        rows=tuple(f"{names[0]}{g * CORE}-{g * CORE + CORE - 1}" for g in groups),
        cells=tuple(tuple(found.get((g, byte), Cell()) for byte in pieces) for g in groups),
        note="Each cell is 8 rows of 16 bytes. One wgmma is one step: 32 bytes of K of all its rows.",
    )


def _reader(r: Read) -> tuple[int | None, int | None, int]:
    return r.wave, r.warpgroup, r.part


def _reads(o: Operand) -> Table:
    start = o.smem.offset or 0

    def who(number: int | None) -> str:
        return "all" if number is None else str(number)

    rows = tuple(
        (
            who(r.wave),
            who(r.warpgroup),
            str(r.part),
            str(r.step),
            count(r.descriptor.start - start),
            str(r.where.shape[0]),
            count(r.descriptor.leading),
            count(r.descriptor.stride),
        )
        for r in o.reads
    )
    columns = (
        "wave",
        "warpgroup",
        "part",
        "step",
        "bytes into the stage",
        "rows",
        "leading",
        "stride",
    )
    return Table(title="Matrix descriptors, all offsets in bytes", columns=columns, rows=rows)
