"""What of a kernel's shared memory is taken twice, or is not there: P2."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ..ir.nodes import Kernel
from .footprint import start


def overlaps(kernel: Kernel) -> Iterator[str]:
    """Buffers and barriers that share bytes, or leave the kernel's shared memory."""
    taken = [(start(s), start(s) + s.bytes, s.name) for s in kernel.smem]
    taken += [(b.offset or 0, (b.offset or 0) + 8 * b.stages, b.name) for b in kernel.barriers]
    taken.sort()
    for (_, end, name), (lo, _, other) in pairwise(taken):
        if lo < end:
            yield f"{name} ends at byte {end}, {other} starts at {lo}"
    if taken and taken[-1][1] > (kernel.smem_bytes or 0):
        yield f"{taken[-1][2]} ends at byte {taken[-1][1]} of {kernel.smem_bytes}"
