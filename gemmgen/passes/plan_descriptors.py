"""Work out wgmma's shared-memory matrix descriptors and how they step through a K block."""

from __future__ import annotations

from dataclasses import replace

from ..ir.decoding import HALVES
from ..ir.nodes import Kernel, Major, Mma, MmaDecoded, ReadCodes, Smem, Stmt
from ..ir.rewrite import map_stmts
from ..target import Target

LAYOUT_CODE = {0: 0, 128: 1, 64: 2, 32: 3}  # bits 62-63, by swizzle bytes
CORE_ROWS = 8  # rows of a core matrix
CORE_BYTES = 16  # bytes per row of a core matrix


def plan_descriptors(kernel: Kernel, target: Target) -> Kernel:
    """Sets Mma.a_bits, b_bits, steps, wave_bytes, warpgroup_bytes and part_bytes, and ReadCodes.wave_bytes and warpgroup_bytes."""
    k_steps = range(kernel.block.k * kernel.instr.a.bytes // target.wgmma_k_bytes)

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case ReadCodes():
                block = kernel.buffer(stmt.smem).row_bytes
                ahead = stmt.wave * kernel.consumers * block
                return replace(stmt, wave_bytes=ahead, warpgroup_bytes=block)
            case MmaDecoded():
                return _of_registers(kernel, stmt, target)
        if not isinstance(stmt, Mma):
            return stmt
        a, b = kernel.buffer(stmt.a), kernel.buffer(stmt.b)
        a_major, b_major = stmt.instr.a_major, stmt.instr.b_major
        block = ROWS_OFFSET[a_major](a, target.wgmma_m)
        a_step, b_step = K_OFFSET[a_major], K_OFFSET[b_major]
        return replace(
            stmt,
            a_bits=descriptor_bits(a, a_major),
            b_bits=descriptor_bits(b, b_major),
            steps=tuple((a_step(a, i, target), b_step(b, i, target)) for i in k_steps),
            wave_bytes=stmt.wave * kernel.consumers * block,
            warpgroup_bytes=block,
            part_bytes=ROWS_OFFSET[b_major](b, stmt.part * stmt.instr.n),
        )

    return map_stmts(kernel, visit)


def _of_registers(kernel: Kernel, stmt: MmaDecoded, target: Target) -> Stmt:
    """Half of the K block's steps; of A there is nothing to describe."""
    b, major = kernel.buffer(stmt.b), stmt.instr.b_major
    count = kernel.block.k * kernel.instr.b.bytes // target.wgmma_k_bytes // HALVES
    steps = range(stmt.half * count, (stmt.half + 1) * count)
    return replace(
        stmt,
        a_bits=0,
        b_bits=descriptor_bits(b, major),
        steps=tuple((0, K_OFFSET[major](b, i, target)) for i in steps),
        wave_bytes=0,
        warpgroup_bytes=0,
    )


def descriptor_bits(s: Smem, major: Major) -> int:
    """The constant fields: leading and stride byte offsets (in 16 bytes) and the swizzle code."""
    assert s.swizzle is not None
    leading, stride = OFFSETS[major](s)
    return leading >> 4 << 16 | stride >> 4 << 32 | LAYOUT_CODE[s.swizzle] << 62


def _k_major_offsets(s: Smem) -> tuple[int, int]:
    """(leading, stride). Swizzled: the stride is one 8-row group, the leading offset is ignored
    (canonically 16). Unswizzled: core matrices (8 rows x 16 bytes) follow each other down a slab of
    16-byte rows; the leading offset is the way to the next 16 bytes of K, the next slab."""
    return s.slab_stride if not s.swizzle else CORE_BYTES, CORE_ROWS * s.slab_bytes


def _mn_major_offsets(s: Smem) -> tuple[int, int]:
    """(leading, stride). Rows are K: 8 of them are one group, and the next span of M or N is the next
    slab. Swizzled: the stride leads to the next group, the leading offset to the next slab.
    Unswizzled the two change roles."""
    group = CORE_ROWS * s.slab_bytes
    return (s.slab_stride, group) if s.swizzle else (group, s.slab_stride)


def _k_columns_offset(s: Smem, step: int, target: Target) -> int:
    """Bytes from a K-major tile's start to the `step`-th 32 bytes of K."""
    return _columns(s, step * target.wgmma_k_bytes)


def _k_rows_offset(s: Smem, step: int, target: Target) -> int:
    """Bytes from an MN-major tile's start to the `step`-th 32 bytes of K: as many rows as elements."""
    return step * (target.wgmma_k_bytes // s.dtype.bytes) * s.slab_bytes


def _rows_offset(s: Smem, rows: int) -> int:
    """Bytes from a K-major tile's start to the M or N that follows `rows` others."""
    return rows * s.slab_bytes


def _mn_columns_offset(s: Smem, rows: int) -> int:
    """The same in an MN-major tile."""
    return _columns(s, rows * s.dtype.bytes)


def _columns(s: Smem, byte: int) -> int:
    """Bytes from a tile's start to `byte` of its first row."""
    slab, within = divmod(byte, s.slab_bytes)
    return slab * s.slab_stride + within


# by major
OFFSETS = {"k": _k_major_offsets, "mn": _mn_major_offsets}
K_OFFSET = {"k": _k_columns_offset, "mn": _k_rows_offset}
ROWS_OFFSET = {"k": _rows_offset, "mn": _mn_columns_offset}
