"""D = epilogue(A @ B^T), unscaled, FP32 accumulation over the whole of K."""

from __future__ import annotations

from ..config import Config
from ..ir.dtypes import F32
from ..ir.nodes import (
    AddSquares,
    Arrive,
    Fence,
    ForK,
    If,
    Kernel,
    Mma,
    Piece,
    Registers,
    SumSquares,
    TileBody,
    Wait,
    WgmmaCommit,
    WgmmaWait,
    Zero,
)
from ..ir.squares import ROWS
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
    waves = range(c.waves) if p.squares else ()
    squares = tuple(Registers(name=f"squares{w}", dtype=F32, count=ROWS) for w in waves)
    piece = Piece(
        loads=tuple(SumSquares(dst=f"squares{w}", smem="smem_a", wave=w) for w in waves),
        products=(Fence(of="wgmma"), *mma, WgmmaCommit()),
        wait=(WgmmaWait(pending=c.in_flight),),
        release=(release,),
    )
    tile = TileBody(
        setup=tuple(Zero(dst=s.name) for s in squares),
        main=(ForK(body=(Wait(barrier="full"), piece), unroll=c.unroll),),
        drain=(*drain, *(AddSquares(dst=f"acc{w}", src=f"squares{w}") for w in waves)),
        epilogue=epilogue(p, c),
    )
    return assemble(p, c, locals=(*accumulators(p, c), *squares), tile=tile)
