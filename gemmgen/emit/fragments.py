"""How operands that go straight into registers are spelled: see gemmgen.ir.fragments."""

from __future__ import annotations

from typing import NamedTuple

from ..ir.fragments import COLUMNS, ROWS, SPAN, WORDS, pieces, registers
from ..ir.nodes import Kernel, LoadFragments, MultiplyFragments
from ..ir.places import plus
from ..ir.resources import PIECE

# Pieces of 16 bytes, by `Kernel.pdl`: see gemmgen.ir.spelling.READS. Rows are read by one warp, once; columns by all.
READS = {
    "rows": {False: "ptx::stream_constant_piece", True: "ptx::stream_piece"},
    "columns": {False: "ptx::load_constant_piece", True: "ptx::load_piece"},
}
# The same into shared memory. Bytes that all warps want come by way of the L1.
COPIES = {"rows": "ptx::stream_copy", "columns": "ptx::copy_piece"}
SIDES = {"a": "m", "b": "n"}  # of the matrix, by which a tensor's rows are counted
ROW = {"rows": " + warpgroup * 64 + warp * 16 + lane / 4", "columns": " + lane / 4"}


class Loaded(NamedTuple):
    """eights: of rows, each of which a lane has one of. words: registers of a row. at: of a row's pieces, in elements from the lane's
    first on. row: of the tensor, the lane's first; rows: of it; side: see SIDES. block: the K block's number, and begins: the element of K where its lane's first piece does.
    read, copy: the functions of a piece. beside: bytes of the other operand's pieces, before this one's. held: registers. turns: places."""

    eights: int
    words: int
    at: tuple[int, ...]
    row: str
    rows: str
    side: str
    block: str
    begins: str
    read: str
    copy: str
    beside: int
    held: int
    turns: int


def fragments(kernel: Kernel, s: LoadFragments) -> Loaded:
    operand = {"rows": kernel.instr.a, "columns": kernel.instr.b}[s.of]
    held = {of: registers(n, kernel.block.k * operand.bytes) for of, n in sides(kernel).items()}
    each = pieces(kernel.block.k * operand.bytes)
    first = f"k{plus(s.distance)}" if s.block == "next" else f"{s.distance}"
    start = "tile.k_first + " * (kernel.cluster.k > 1)
    lane = f"lane % {SPAN // PIECE} * {PIECE // operand.bytes}"
    return Loaded(
        eights=held[s.of] // (each * WORDS),
        words=each * WORDS,
        at=tuple(j * SPAN // operand.bytes for j in range(each)),
        row=f"tile.{s.tensor}_row{ROW[s.of]}",
        rows={"a": rows_of_a(kernel), "b": "shape_n"}[s.tensor],
        side=SIDES[s.tensor],
        block=first,
        begins=f"{start}kk * {kernel.block.k} + {lane}",
        read=READS[s.of][kernel.pdl],
        copy=COPIES[s.of],
        beside=held["rows"] // WORDS * kernel.threads * PIECE * (s.of == "columns"),
        held=held[s.of],
        turns=kernel.buffer(s.smem).stages if s.smem else 0,
    )


def sides(kernel: Kernel) -> dict[str, int]:
    """Of the sum that a warp has."""
    return {"rows": ROWS, "columns": kernel.instr.n}


def rows_of_a(kernel: Kernel) -> str:
    """All ranks' rows, where they share out those of D."""
    return "shape_m" + " * ranks" * (kernel.peers.slot > 0 and not kernel.peers.every)


class Multiplied(NamedTuple):
    """eights: of columns. words: registers of a row. of: of each operand what an mma.sync calls its type."""

    eights: int
    words: int
    rows: str
    columns: str


def products(kernel: Kernel, s: MultiplyFragments) -> Multiplied:
    w = kernel.instr
    return Multiplied(
        eights=w.n // COLUMNS,
        words=pieces(kernel.block.k * w.a.bytes) * WORDS,
        rows=w.a.name,
        columns=w.b.name,
    )
