"""D = epilogue(A @ B^T): FP8 without scales of its own, promoted to FP32 every 128 bytes of K.

The accurate one: `dense` takes the same operands and leaves the sum in the tensor core's 14 bits.
"""

from __future__ import annotations

from ..config import Config
from ..ir.dtypes import F32
from ..ir.nodes import (
    Accumulate,
    Arrive,
    ForK,
    Kernel,
    Mma,
    Registers,
    Stmt,
    Wait,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    Zero,
)
from ..problem import Problem
from .common import accumulators, assemble, wgmma
from .output import epilogue


def build(p: Problem, c: Config) -> Kernel:
    """Each wave of 64 rows multiplies one K block into `part` and adds it to its accumulator."""
    acc = accumulators(p, c)
    part = Registers(name="part", dtype=F32, count=acc[0].count)
    step = (Wait(barrier="full"), *(s for w in range(c.waves) for s in _wave(p, c, w)))
    zero = tuple(Zero(dst=a.name) for a in acc)
    tile = (*zero, ForK(body=step, unroll=c.unroll), *epilogue(p, c))
    return assemble(p, c, locals=(*acc, part), tile=tile)


def _wave(p: Problem, c: Config, w: int) -> tuple[Stmt, ...]:
    # The last wave's MMAs are the stage's last readers: release it before adding.
    release = (Arrive(barrier="empty"),) * (w == c.waves - 1)
    return (
        WgmmaFence(),
        Mma(dst="part", a="smem_a", b="smem_b", instr=wgmma(p, c), wave=w, fresh="block"),
        WgmmaCommit(),
        WgmmaWait(pending=c.in_flight),
        *release,
        Accumulate(dst=f"acc{w}", src="part"),
    )
