"""Work out wgmma's shared-memory matrix descriptors and how they step through a K block."""

from __future__ import annotations

from dataclasses import replace

from ..ir.nodes import Kernel, Mma, Smem, Stmt
from ..ir.rewrite import map_stmts
from ..target import Target

LAYOUT_CODE = {0: 0, 128: 1, 64: 2, 32: 3}  # bits 62-63, by swizzle bytes
CORE_ROWS = 8  # rows of a core matrix
CORE_BYTES = 16  # bytes per row of a core matrix


def plan_descriptors(kernel: Kernel, target: Target) -> Kernel:
    """Both operands are K-major. Sets Mma.a_bits, b_bits, steps, wave_bytes and warpgroup_bytes."""
    k_steps = kernel.block.k * kernel.instr.a.bytes // target.wgmma_k_bytes

    def visit(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, Mma):
            return stmt
        a, b = kernel.buffer(stmt.a), kernel.buffer(stmt.b)
        block = target.wgmma_m * a.slab_bytes  # 64 rows of A
        return replace(
            stmt,
            a_bits=descriptor_bits(a),
            b_bits=descriptor_bits(b),
            steps=tuple((k_offset(a, i, target), k_offset(b, i, target)) for i in range(k_steps)),
            wave_bytes=stmt.wave * kernel.consumers * block,
            warpgroup_bytes=block,
        )

    return map_stmts(kernel, visit)


def descriptor_bits(s: Smem) -> int:
    """The constant fields: leading and stride byte offsets (in 16 bytes) and the swizzle code.

    Swizzled K-major: the stride is one 8-row group, the leading offset is ignored (canonically 1).
    Unswizzled: core matrices (8 rows x 16 bytes) follow each other down a slab of 16-byte rows;
    the leading offset is the way to the next 16 bytes of K, the next slab.
    """
    assert s.swizzle is not None
    leading = 1 if s.swizzle else s.slab_stride >> 4
    stride = CORE_ROWS * s.slab_bytes >> 4
    return leading << 16 | stride << 32 | LAYOUT_CODE[s.swizzle] << 62


def k_offset(s: Smem, step: int, target: Target) -> int:
    """Bytes from a tile's start to the `step`-th 32 bytes of K."""
    slab, within = divmod(step * target.wgmma_k_bytes, s.slab_bytes)
    return slab * s.slab_stride + within
