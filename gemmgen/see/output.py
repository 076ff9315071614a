"""How D's tile is staged in shared memory: who writes which element where, and the boxes that leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ..emulator.descriptor import swizzled
from ..emulator.tensor_map import chunks
from ..errors import ArgumentError
from ..ir.nodes import (
    Kernel,
    Smem,
    StageTile,
    TmaStore,
)
from ..ir.places import held
from ..ir.rewrite import statements
from ..ir.stores import TRANSPOSED, slot
from .banks import Addresses, Banks, count, total

CHUNK = 16  # bytes of a row of one stmatrix matrix
MATRIX = 8  # rows and columns of it
WARP = 32
WARPS = 4  # of a warpgroup
WARP_SIDE = 16  # of wgmma's rows, that one warp holds


@dataclass(frozen=True, kw_only=True, eq=False)
class Store:
    """One store instruction of one warp. registers: the first that it stores and the one past its last. where:
    the address that each lane gives, 32 or, of two matrices, 16 of them. size: bytes at each. row, column: int,
    of D's tile, the element at each address."""

    instruction: str
    wave: int
    warpgroup: int
    warp: int
    registers: tuple[int, int]
    where: Addresses
    row: Addresses
    column: Addresses
    size: int

    @property
    def banks(self) -> Banks:
        return count([self.where], self.size)


@dataclass(frozen=True, kw_only=True, eq=False)
class Out:
    """One TMA box of one warpgroup's piece. row, column: of D's tile, where it begins. where: int64
    [rows, 16-byte pieces], the address of each piece."""

    row: int
    column: int
    where: Addresses


@dataclass(frozen=True, kw_only=True, eq=False)
class Output:
    """smem: D's buffer; its stages are pieces of the tile, or places that pieces share by turns. where: int64
    [rows, columns] of D's tile, the address of each element's first byte. banks: of all stores together. boxes: none where
    rows leave one by one. Of warpgroups that each have a copy of the buffer, the first one's."""

    smem: Smem
    statement: str
    where: Addresses
    stores: tuple[Store, ...]
    boxes: tuple[Out, ...]
    banks: Banks


def output(kernel: Kernel) -> Output:
    """D's tile of a lowered kernel. Raises ArgumentError for one that stores D from registers."""
    d = kernel.buffer("smem_d")
    staged = [s for s in dict.fromkeys(statements(kernel)) if isinstance(s, StageTile)]
    if not staged:
        says = "must stage D in shared memory: sums of rows are stored from registers"
        raise ArgumentError("D", kernel.name, says)
    stores = tuple(store for s in staged for store in _stores(kernel, d, s))
    return Output(
        smem=d,
        statement=type(staged[0]).__name__,
        where=_tile(kernel, d, staged),
        stores=stores,
        boxes=tuple(_boxes(kernel, d)),
        banks=total(s.banks for s in stores),
    )


def place(d: Smem, piece: Any, row: Any, column: Any) -> Any:
    """The address of an element of a piece of D: its slab, its row of that, swizzled as TMA reads it."""
    assert d.offset is not None and d.swizzle is not None
    slab = column // d.slab_cols * d.slab_stride
    within = column % d.slab_cols * d.dtype.bytes
    linear = d.offset + piece * d.stage_bytes + slab + row * d.slab_bytes + within
    return swizzled(np.asarray(linear, np.int64), d.swizzle)


def _tile(kernel: Kernel, d: Smem, staged: list[StageTile]) -> Addresses:
    where = np.zeros((kernel.block.d_m, kernel.block.d_n), np.int64)
    row, column = np.mgrid[: d.rows, : d.cols]
    for s, warpgroup in product(staged, range(kernel.consumers)):
        piece, top, left = _piece(kernel, d, s, warpgroup)
        where[top : top + d.rows, left : left + d.cols] = place(d, piece, row, column)
    return where


def _piece(kernel: Kernel, d: Smem, s: StageTile, warpgroup: int) -> tuple[int, int, int]:
    """Which piece of the buffer a warpgroup stages in, and the row and column of D's tile where that begins."""
    top, left = d.corner(s.wave * kernel.consumers + warpgroup)
    return slot(s) * kernel.consumers + warpgroup, top, left + s.column


def _stores(kernel: Kernel, d: Smem, s: StageTile) -> Iterator[Store]:
    registers, skipped = held(kernel, s), s.column // 2
    for warpgroup in range(kernel.consumers):
        piece, top, left = _piece(kernel, d, s, warpgroup)
        for warp in range(WARPS):
            for name, first, end, row, column, size in _instructions(d, s, warp, registers):
                yield Store(
                    instruction=name,
                    wave=s.wave,
                    warpgroup=warpgroup,
                    warp=warp,
                    registers=(skipped + first, skipped + end),
                    where=place(d, piece, row, column),
                    row=row + top,
                    column=column + left,
                    size=size,
                )


Instruction = tuple[str, int, int, Any, Any, int]  # name, registers, rows, columns, bytes


def _instructions(d: Smem, s: StageTile, warp: int, registers: int) -> Iterator[Instruction]:
    """What a warp stores, and the element at each lane's address, within its piece (PTX ISA: stmatrix, and
    the fragment of wgmma)."""
    lane = np.arange(WARP)
    match s.by:
        case "matrix" | "matrix_transposed":
            yield from _matrices(s, warp, registers)
        case "pairs" | "byte_pairs":
            row, column = warp * WARP_SIDE + lane // 4, lane % 4 * 2
            size = 2 * d.dtype.bytes
            for i in range(0, registers, 4):
                for half in (0, 1):
                    at = (row + 8 * half, column + 2 * i, size)
                    yield (f"st.shared {size} bytes", i + 2 * half, i + 2 * half + 2, *at)
        case "elements":
            for i in range(registers):
                row = warp * WARP_SIDE + lane // 4 + 8 * (i % 2)
                column = lane % 4 + i // 2 * 4
                yield f"st.shared {d.dtype.bytes} bytes", i, i + 1, row, column, d.dtype.bytes
        case "folded_transposed":
            column = warp * WARP_SIDE // 2 + lane // 8 + lane // 4 % 2 * 4
            for i in range(registers):
                at = (lane % 4 * 2 + i % 2 + i // 2 * 8, column, d.dtype.bytes)
                yield f"st.shared {d.dtype.bytes} bytes", i, i + 1, *at
        case "elements_transposed":
            for half in (0, 1):
                column = warp * WARP_SIDE + half * 8 + lane // 4
                for i in range(0, registers, 4):
                    for one in (0, 1):
                        at = (lane % 4 * 2 + one + 2 * i, column, d.dtype.bytes)
                        register = i + 2 * half + one
                        yield f"st.shared {d.dtype.bytes} bytes", register, register + 1, *at


def _matrices(s: StageTile, warp: int, registers: int) -> Iterator[Instruction]:
    """Four matrices of 8 x 8 at a time, two where no more are left: lanes 8j to 8j + 7 address the rows of
    matrix j. Plainly the second lies below the first; transposed, beside it."""
    for i in range(0, registers, 8):
        matrices = min(4, (registers - i) // 2)
        lane = np.arange(MATRIX * matrices)
        matrix = lane // MATRIX
        across, down = matrix // 2 * MATRIX, matrix % 2 * MATRIX + lane % MATRIX
        row, column, suffix = warp * WARP_SIDE + down, 2 * i + across, ""
        if s.by in TRANSPOSED:
            row, column = 2 * i + across + lane % MATRIX, warp * WARP_SIDE + matrix % 2 * MATRIX
            suffix = ".trans"
        yield f"stmatrix.x{matrices}{suffix}", i, i + 2 * matrices, row, column, CHUNK


def _boxes(kernel: Kernel, d: Smem) -> Iterator[Out]:
    for s in dict.fromkeys(statements(kernel)):
        if not isinstance(s, TmaStore):
            continue
        box = kernel.map(s.tensor_map).box
        assert box is not None and d.offset is not None and d.swizzle is not None
        for warpgroup in range(kernel.consumers):
            top, left = d.corner(s.wave * kernel.consumers + warpgroup)
            piece = slot(s) * kernel.consumers + warpgroup
            start = d.offset + piece * d.stage_bytes + s.offset
            where = chunks(start, box[0] * box[1] * d.dtype.bytes, d.swizzle) * CHUNK
            column = left + s.coords[0].offset
            yield Out(row=top, column=column, where=where.reshape(box[1], -1))
