"""What statements that stage D have in common: where an element lies in shared memory, and how it is stored."""

from __future__ import annotations

from ..ir import nodes as ir
from ..ir.dtypes import BF16, E4M3, F16, S32, DType

MATRIX = "stmatrix.sync.aligned.m8n8.x{}{}.shared.b16"
PAIR_OF_BYTES = '"cvt.rn.satfinite.e4m3x2.f32"($b16'


def mask(b: ir.Smem) -> int:
    """Of a row's number, the bits that its chunks of 16 bytes are exchanged by."""
    return max((b.swizzle or 0) // 16 - 1, 0)


def mixed(b: ir.Smem, row: str) -> str:
    return f"({row} * {b.slab_bytes} >> 7 & {mask(b)}) << 4"


def base(k: ir.Kernel, b: ir.Smem, own: int, row: str) -> str:
    """Where `row` of this warpgroup's piece number `own` begins."""
    return (
        f"{b.name} + ({own * k.consumers} + warpgroup) * {b.stage_bytes} + ({row}) * {b.slab_bytes}"
    )


def one(b: ir.Smem, x: str, at: str) -> str:
    """A store of one element."""
    match b.dtype:
        case t if t in (BF16, F16):
            return f'"st.shared.b16"([{at}], "cvt.rn.{t.ptx}.f32"($b16, float({x})));'
        case t if t == E4M3:
            return f'"st.shared.u8"([{at}], {PAIR_OF_BYTES}, "0f00000000", float({x})));'
        case t:
            return f'"st.shared.{t.ptx}"([{at}], {"int" if t == S32 else "float"}({x}));'


def pair(t: DType, low: str, high: str) -> str:
    """Two values in a register: frame.FUNCTIONS."""
    return f"ptx::pair_{t.ptx}({low}, {high})"
