"""Packed weights as a page: blocks, the words that a thread reads of them, and where a word holds its codes."""

from __future__ import annotations

import numpy as np

from ..ir.codings import READ_WORDS, THREADS
from ..ir.nodes import Kernel, LoadBlocks, ReadCodes
from ..ir.packed import COLUMNS, PAIRS, ROWS, Form
from ..ir.rewrite import statements
from . import banks
from .page import Cell, Facts, Grid, Page, Table, count
from .pictures import BANKS, CHUNK, LINE, LINES, conflicts

RECORDS = {
    "scale": "scales",
    "zeros": "scales and zeros",
    "exponent": "exponents",
    "shift": "exponents less their rows'",
}


def form(kernel: Kernel) -> Form | None:
    """How B's blocks are packed; None where B is none."""
    return next((s.form for s in statements(kernel) if isinstance(s, ReadCodes)), None)


def packed_page(kernel: Kernel, of: Form) -> Page:
    """Of B. kernel: lowered."""
    (load,) = {s for s in statements(kernel) if isinstance(s, LoadBlocks)}
    smem = kernel.buffer(load.smem)
    blocks = smem.stage_bytes // of.block_bytes
    starts = f"from {count(smem.offset or 0)} on"
    buffer = f"{smem.name}: {smem.stages} x {count(smem.stage_bytes)} bytes {starts}"
    stage = f"{blocks} blocks of {ROWS} rows, each a bulk copy"
    block = f"{ROWS} rows x {COLUMNS} columns of {of.name}, {count(of.block_bytes)} bytes"
    facts = Facts(title="Buffer", items=(("buffer", buffer), ("stage", stage), ("block", block)))
    rows = [(f"ld.shared of {CHUNK} bytes per lane, a block's codes", _banks(of, smem.offset or 0))]
    note = "Eight lanes read a line of 128 bytes, each bank once."
    return Page(
        title=f"B of {kernel.name}",
        blocks=(facts, _parts(of), _memory(of), _word(of), conflicts("Bank conflicts", rows, note)),
    )


def _banks(of: Form, start: int) -> banks.Banks:
    lanes = np.arange(32) * CHUNK
    warps = range(start, start + of.codes_bytes, 32 * CHUNK)
    return banks.total(banks.count([first + lanes], CHUNK) for first in warps)


def _parts(of: Form) -> Table:
    """What a block has, in the order of its bytes."""
    read = THREADS * CHUNK
    codes = tuple(
        (str(i * read), f"16 bytes of each thread: codes of columns {_columns(of, i)}")
        for i in range(of.words // READ_WORDS)
    )
    if not of.groups:
        return Table(title="A block", columns=("byte", "holds"), rows=codes)
    whose = "the first row's before the second's"
    record = RECORDS[of.by]
    says = f"{PAIRS} pairs of rows r and r + 8, {of.pair_bytes} bytes each: {record}, {whose}"
    return Table(
        title="A block", columns=("byte", "holds"), rows=(*codes, (str(of.codes_bytes), says))
    )


def _columns(of: Form, read: int) -> str:
    words = range(read * READ_WORDS * THREADS, (read + 1) * READ_WORDS * THREADS)
    found = [of.coding.place(w, c)[1] for w in words for c in range(of.codes)]
    return f"{min(found)}-{max(found)}"


def _memory(of: Form) -> Grid:
    def cell(at: int) -> Cell:
        thread, word = at // CHUNK, at // 4
        row, column, _ = of.coding.place(word, 0)
        tip = f"thread {thread}: rows {row} and {row + 8}; bank {banks.bank(at)} first"
        return Cell(label=f"n{row} k{column}", hue=thread % 4, tip=tip)

    lines = range(0, LINES * LINE, LINE)
    return Grid(
        title=f"A block's codes, the first {len(lines)} lines of 128 bytes",
        columns=BANKS,
        rows=tuple(f"+{line}" for line in lines),
        cells=tuple(tuple(cell(at) for at in range(line, line + LINE, CHUNK)) for line in lines),
        note="Each cell is 16 bytes, below the first of their banks if the block starts at bank 0, and names the "
        "first code of the thread that reads them. The colour is the thread's place in its quad.",
    )


def _word(of: Form) -> Table:
    """Of thread 0's first word."""
    rows = []
    for code in range(of.codes):
        row, column, bits = of.coding.place(0, code)
        places = (code, row, column, _register(of, row, column))
        rows.append((*map(str, places), " ".join(map(str, bits))))
    return Table(
        title="The first word of thread 0: where its codes lie",
        columns=("code", "row", "column", "register of wgmma's A", "bits, the highest first"),
        rows=tuple(rows),
        note=_next(of),
    )


def _register(of: Form, row: int, column: int) -> int:
    """Of a step, what thread 0 has that row and column in: of the upper half of rows every second, of the second half of columns the later."""
    return (row > 0) + 2 * (column >= COLUMNS // of.steps // 2)


def _next(of: Form) -> str:
    step = COLUMNS // of.steps
    if of.bits == 8:
        half = step // 2
        return (
            f"A word is {half} columns of K, half a wgmma; the thread's next has the next {half}."
        )
    if of.steps == of.words:
        return f"A word is {step} columns of K, one wgmma; the thread's next has the next {step}."
    return f"A word is {step} columns of K, one wgmma, of one row; the thread's next is of its other row."
