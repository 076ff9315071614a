"""D = epilogue(A @ B^T): FP8 without scales of its own, promoted to FP32 every 128 bytes of K.

The accurate one: `dense` takes the same operands and leaves the sum in the tensor core's 14 bits.
"""

from __future__ import annotations

from ..config import Config
from ..ir.nodes import Accumulate, ForK, Kernel, Piece, TileBody, Wait, Zero
from ..problem import Problem
from .common import accumulators, assemble, partial, pieces, promoted
from .output import epilogue


def build(p: Problem, c: Config) -> Kernel:
    """Each wave of 64 rows multiplies one K block (or a part of its columns) into `part` and adds it to
    its accumulator."""
    acc = accumulators(p, c)
    step = (Wait(barrier="full"), *(_piece(p, c, *piece) for piece in pieces(c)))
    tile = TileBody(
        setup=tuple(Zero(dst=a.name) for a in acc),
        main=(ForK(body=step, unroll=c.unroll),),
        epilogue=epilogue(p, c),
    )
    return assemble(p, c, locals=(*acc, partial(p, c)), tile=tile)


def _piece(p: Problem, c: Config, wave: int, part: int, last: bool) -> Piece:
    add = Accumulate(dst=f"acc{wave}", src="part", part=part)
    return promoted(p, c, wave, part, last, by=add)
