"""What a spread must write, in NumPy, and spreads run by the emulator."""

from __future__ import annotations

import numpy as np
from combine_reference import placed

from gemmgen.emulator import GlobalMemory, launch, load
from gemmgen.runtime.nvrtc import compile_ptx
from gemmgen.spreading import source

GRID = 3  # CTAs: fewer than tiles, so that they loop
POISON = 0x5A


def reference(q, scale, slots, rows):
    """(codes uint8 [rows, bytes], bits of scales [rows, blocks]); what is not written is POISON."""
    codes = np.full((rows, q.shape[1]), POISON, np.uint8)
    scales = np.full((rows, scale.shape[1], 4), POISON, np.uint8).view(np.uint32)[..., 0]
    for t, of_token in enumerate(slots):
        for slot in of_token:
            if 0 <= slot < rows:
                codes[slot], scales[slot] = q[t], scale[t]
    return codes, scales


def emulate(q, scale, slots, rows, c, *, beside=0, offset=0, by_row=False, grid=GRID, text=None):
    """As `reference` gives them, by the spread's PTX. q: uint8 [tokens, bytes]; scale: bits.

    beside: units between a row's end and the next row of q, slots and scale. offset: bytes of q from where it is aligned. by_row: whether a
    token's scales lie together, and not a block's. What is behind and between rows must stay as it was.
    text: in place of the spread's source.
    """
    memory = GlobalMemory()
    (tokens, top), parts, blocks = slots.shape, q.shape[1] // c.unit, scale.shape[1]
    pitch, slots_stride = parts + beside, top + beside
    stored = scale if by_row else np.ascontiguousarray(scale.T)
    step, stride = stored.shape[1] + beside, -(-rows // 4) * 4 + 4
    at_codes = memory.allocate(_poison(rows * parts * c.unit + 32))
    at_scales = memory.allocate(_poison(4 * blocks * stride + 32))
    values = {"q": placed(memory, q, pitch * c.unit, offset), "codes": at_codes}
    values |= {"slots": placed(memory, slots, slots_stride, beside=0), "scales": at_scales}
    values |= {"scale": placed(memory, stored, step), "scales_stride": stride}
    values |= {"scale_token": step if by_row else 1, "scale_block": 1 if by_row else step}
    values |= {"q_stride": pitch, "slots_stride": slots_stride}
    values |= {"rows": rows, "tokens": tokens, "top": top, "parts": parts, "blocks": blocks}
    launch(
        load(compile_ptx(text or source(c), c.name)).entries[c.name],
        grid=grid,
        block=c.threads,
        cluster=1,
        shared_bytes=0,
        params=[values[p.name] for p in c.params],
        memory=memory,
    )
    codes = memory.read(at_codes, rows * parts * c.unit + 32)
    scales = memory.read(at_scales, 4 * blocks * stride + 32)
    assert (codes[-32:] == POISON).all() and (scales[-32:] == POISON).all()
    by_block = scales[:-32].view(np.uint32).reshape(blocks, stride)
    assert (np.ascontiguousarray(by_block[:, rows:]).view(np.uint8) == POISON).all()
    return codes[:-32].reshape(rows, parts * c.unit), by_block[:, :rows].T


def _poison(size):
    return np.full(size, POISON, np.uint8)
