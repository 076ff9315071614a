"""D = epilogue(A @ B^T), unscaled, FP32 accumulation over the whole of K."""

from __future__ import annotations

from ..config import Config
from ..ir.nodes import (
    Arrive,
    Fence,
    ForK,
    If,
    Kernel,
    Mma,
    Piece,
    TileBody,
    Wait,
    WgmmaCommit,
    WgmmaWait,
)
from ..problem import Problem
from .common import accumulators, assemble, wgmma
from .output import epilogue

LAGGING = Arrive(barrier="empty", lag=1)
# By Config.in_flight: how a K block releases a stage, and what is left when the loop ends. Drained, each stage is released
# as soon as its own MMAs are done. One group in flight across the back-edge leaves the stage before it to release.
RELEASES = (
    (Arrive(barrier="empty"), ()),
    (If(when="after_first", body=(LAGGING,)), (WgmmaWait(pending=0), LAGGING)),
)


def build(p: Problem, c: Config) -> Kernel:
    """Any operands and layout that wgmma has. One commit group per K block holds every wave's MMAs."""
    mma = tuple(
        Mma(dst=f"acc{w}", a="smem_a", b="smem_b", instr=wgmma(p, c), wave=w, fresh="tile")
        for w in range(c.waves)
    )
    release, drain = RELEASES[c.in_flight]
    piece = Piece(
        products=(Fence(of="wgmma"), *mma, WgmmaCommit()),
        wait=(WgmmaWait(pending=c.in_flight),),
        release=(release,),
    )
    tile = TileBody(
        main=(ForK(body=(Wait(barrier="full"), piece), unroll=c.unroll),),
        drain=drain,
        epilogue=epilogue(p, c),
    )
    return assemble(p, c, locals=accumulators(p, c), tile=tile)
