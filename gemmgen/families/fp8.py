"""D = epilogue(A @ B^T): FP8 without scales of its own, promoted to FP32 every 128 bytes of K.

The accurate one: `dense` takes the same operands and leaves the sum in the tensor core's 14 bits.
"""

from __future__ import annotations

from ..config import Config
from ..ir.nodes import (
    Accumulate,
    Arrive,
    Fence,
    ForK,
    Kernel,
    Stmt,
    Wait,
    WgmmaCommit,
    WgmmaWait,
    Zero,
)
from ..problem import Problem
from .common import accumulators, assemble, multiply, partial, pieces
from .output import epilogue


def build(p: Problem, c: Config) -> Kernel:
    """Each wave of 64 rows multiplies one K block (or a part of its columns) into `part` and adds it to
    its accumulator."""
    acc = accumulators(p, c)
    step = (Wait(barrier="full"), *(s for piece in pieces(c) for s in _piece(p, c, *piece)))
    zero = tuple(Zero(dst=a.name) for a in acc)
    tile = (*zero, ForK(body=step, unroll=c.unroll), *epilogue(p, c))
    return assemble(p, c, locals=(*acc, partial(p, c)), tile=tile)


def _piece(p: Problem, c: Config, wave: int, part: int, last: bool) -> tuple[Stmt, ...]:
    # The last MMAs are the stage's last readers: release it before adding.
    release = (Arrive(barrier="empty"),) * last
    return (
        Fence(of="wgmma"),
        multiply(p, c, wave, part),
        WgmmaCommit(),
        WgmmaWait(pending=c.in_flight),
        *release,
        Accumulate(dst=f"acc{wave}", src="part", part=part),
    )
