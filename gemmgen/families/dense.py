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
    Stmt,
    Wait,
    WgmmaCommit,
    WgmmaWait,
)
from ..problem import Problem
from .common import accumulators, assemble, wgmma
from .output import epilogue


def build(p: Problem, c: Config) -> Kernel:
    """Any operands and layout that wgmma has. One commit group per K block holds every wave's MMAs."""
    mma = tuple(
        Mma(dst=f"acc{w}", a="smem_a", b="smem_b", instr=wgmma(p, c), wave=w, fresh="tile")
        for w in range(c.waves)
    )
    issue = (
        Wait(barrier="full"),
        Fence(of="wgmma"),
        *mma,
        WgmmaCommit(),
        WgmmaWait(pending=c.in_flight),
    )
    return assemble(
        p,
        c,
        locals=accumulators(p, c),
        tile=(*K_LOOPS[c.in_flight](issue, c.unroll), *epilogue(p, c)),
    )


def _drained(issue: tuple[Stmt, ...], unroll: int) -> tuple[Stmt, ...]:
    """Each stage is released as soon as its own MMAs are done."""
    return (ForK(body=(*issue, Arrive(barrier="empty")), unroll=unroll),)


def _in_flight(issue: tuple[Stmt, ...], unroll: int) -> tuple[Stmt, ...]:
    """One group stays in flight across the back-edge, so the stage before it is the one to release."""
    release = Arrive(barrier="empty", lag=1)
    return (
        ForK(body=(*issue, If(when="after_first", body=(release,))), unroll=unroll),
        WgmmaWait(pending=0),
        release,
    )


K_LOOPS = (_drained, _in_flight)  # by Config.in_flight
