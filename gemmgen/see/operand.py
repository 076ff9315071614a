"""Where an operand's tile lies in a stage of shared memory, and in which order wgmma reads it.

Two owners of addresses are asked: the loads (boxes and copied rows, swizzled by the copy engine's rule), and the descriptors
of `Mma` (decoded and walked by wgmma's rule). Addresses are those of ring stage 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..emulator import descriptor
from ..emulator.descriptor import Descriptor, decode_descriptor
from ..emulator.tensor_map import chunks
from ..errors import ArgumentError
from ..ir.nodes import CopyRows, Kernel, LoadBlocks, Major, Mma, Smem, TmaLoad
from ..ir.rewrite import statements
from ..ir.stmts import multicasts
from .banks import Addresses, Banks, count
from .sharing import sharing

CHUNK = 16  # bytes: what a swizzle moves as one
CORE = 8  # rows of a core matrix, each one chunk
ROWS = 64  # of wgmma's first operand


@dataclass(frozen=True, kw_only=True, eq=False)
class Box:
    """One TMA box, or the rows that threads copy. source: the tensor map, or the tensor. row, byte: of the tile, where
    it begins. rank: of the CTA that loads it for the cluster, None if each loads its own. where: int64 [rows, 16-byte
    pieces], the address of each piece."""

    source: str
    rank: int | None
    row: int
    byte: int
    offset: int
    where: Addresses


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """One wgmma's read of the operand: `step`-th 32 bytes of K. where: int64 [rows, 32], the address of each
    byte, along K in each row of M or N. warpgroup, wave: None if all read the same."""

    wave: int | None
    warpgroup: int | None
    part: int
    step: int
    descriptor: Descriptor
    where: Addresses

    @property
    def core_matrices(self) -> Iterator[Addresses]:
        """The addresses of the 8 pieces of 16 bytes of each 8 rows and 16 bytes of K, in order."""
        rows, width = self.where.shape
        for row in range(0, rows, CORE):
            for byte in range(0, width, CHUNK):
                block = self.where[row : row + CORE, byte : byte + CHUNK]
                yield np.unique(block // CHUNK) * CHUNK


@dataclass(frozen=True, kw_only=True, eq=False)
class Operand:
    """A or B. smem: its buffer, whose rows are M or N, and K where it is MN-major. where: int64 [rows, bytes of
    a row], the address of each byte of the tile. banks: of the core matrices that wgmma reads."""

    smem: Smem
    major: Major
    boxes: tuple[Box, ...]
    reads: tuple[Read, ...]
    where: Addresses
    banks: Banks


def operand(kernel: Kernel, name: str) -> Operand:
    """name: "a" or "b". `kernel` is lowered. Raises ArgumentError for another name, for a kernel
    whose operands go straight into registers, and for packed weights."""
    if name not in ("a", "b"):
        raise ArgumentError("operand", name, "must be a or b")
    if not kernel.ring:
        says = f"must be a kernel with {name.upper()} in shared memory, not in registers alone"
        raise ArgumentError("operand", kernel.name, says)
    smem = kernel.buffer(f"smem_{name}")
    if any(isinstance(s, LoadBlocks) and s.smem == smem.name for s in statements(kernel)):
        says = f"must be a kernel whose {name.upper()} is not packed"
        raise ArgumentError("operand", kernel.name, says)
    boxes, reads = tuple(_boxes(kernel, smem)), tuple(_reads(kernel, smem))
    return Operand(
        smem=smem,
        major=_major(kernel, smem),
        boxes=boxes,
        reads=reads,
        where=_tile(smem, boxes),
        banks=count((core for r in reads for core in r.core_matrices), CHUNK),
    )


def _major(kernel: Kernel, s: Smem) -> Major:
    mma = next(x for x in statements(kernel) if isinstance(x, Mma) and s.name in (x.a, x.b))
    return mma.instr.a_major if mma.a == s.name else mma.instr.b_major


def _boxes(kernel: Kernel, s: Smem) -> Iterator[Box]:
    for load in statements(kernel):
        if isinstance(load, CopyRows) and load.smem == s.name:
            yield _copied(load, s)
        if isinstance(load, TmaLoad) and load.smem == s.name:
            ranks = range(kernel.cluster.size) if multicasts(load) else (None,)
            for rank in ranks:
                yield _box(kernel, s, load, rank)


def _box(kernel: Kernel, s: Smem, load: TmaLoad, rank: int | None) -> Box:
    box = kernel.map(load.tensor_map).box
    assert box is not None and s.offset is not None and s.swizzle is not None
    offset, (inner, outer) = load.offset, load.coords[:2]
    offset += (rank or 0) * (load.rank_bytes or 0)
    size = box[0] * box[1] * s.dtype.bytes
    where = chunks(s.offset + offset, size, s.swizzle) * CHUNK
    return Box(
        source=load.tensor_map,
        rank=rank,
        row=_page(load) * kernel.groups.pages + outer.offset + (rank or 0) * outer.rank_step,
        byte=(inner.offset + (rank or 0) * inner.rank_step) * s.dtype.bytes,
        offset=offset,
        where=where.reshape(box[1], -1),
    )


def _page(load: TmaLoad) -> int:
    """The tile's, that a box is; the first where there are none."""
    return next((c.offset for c in load.coords if c.base == "page"), 0)


def _copied(load: CopyRows, s: Smem) -> Box:
    assert s.offset is not None and s.swizzle is not None
    where = chunks(s.offset, s.stage_bytes, s.swizzle) * CHUNK
    return Box(
        source=load.tensor, rank=None, row=0, byte=0, offset=0, where=where.reshape(s.rows, -1)
    )


def _tile(s: Smem, boxes: tuple[Box, ...]) -> Addresses:
    """-1 where no box lands."""
    where = np.full((s.rows, s.cols * s.dtype.bytes), -1, np.int64)
    for b in boxes:
        bytes_ = (b.where[:, :, None] + np.arange(CHUNK)).reshape(b.where.shape[0], -1)
        where[b.row : b.row + bytes_.shape[0], b.byte : b.byte + bytes_.shape[1]] = bytes_
    return where


def _reads(kernel: Kernel, s: Smem) -> Iterator[Read]:
    """Each product once, in program order: loops are written out in more than one place."""
    for mma in dict.fromkeys(x for x in statements(kernel) if isinstance(x, Mma)):
        if mma.a == s.name:
            for number, warpgroup in sharing(kernel):
                yield from _first(s, mma, number, warpgroup)
        elif mma.b == s.name and mma.wave == 0:
            yield from _second(s, mma)


def _first(s: Smem, mma: Mma, number: int, warpgroup: int | None) -> Iterator[Read]:
    """64 rows of the first operand: of one wave and warpgroup; the same for every part."""
    assert mma.steps is not None and mma.a_bits is not None
    if mma.part:
        return
    at = (mma.wave_bytes or 0) + number * (mma.warpgroup_bytes or 0)
    for step, (offset, _) in enumerate(mma.steps):
        d = _descriptor(s, mma.a_bits, at + offset)
        where = descriptor.addresses(d, ROWS, mma.instr.a_major == "mn")
        yield Read(wave=mma.wave, warpgroup=warpgroup, part=0, step=step, descriptor=d, where=where)


def _second(s: Smem, mma: Mma) -> Iterator[Read]:
    """A part's rows of the second operand: the same for every wave and warpgroup."""
    assert mma.steps is not None and mma.b_bits is not None
    for step, (_, offset) in enumerate(mma.steps):
        d = _descriptor(s, mma.b_bits, mma.part_bytes + offset)
        where = descriptor.addresses(d, mma.instr.n, mma.instr.b_major == "mn")
        yield Read(wave=None, warpgroup=None, part=mma.part, step=step, descriptor=d, where=where)


def _descriptor(s: Smem, bits: int, offset: int) -> Descriptor:
    assert s.offset is not None
    return decode_descriptor(bits | s.offset + offset >> 4)
