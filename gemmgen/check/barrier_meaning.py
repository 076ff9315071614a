"""What the statements that arrive at barriers, and wait for them, mean: see meaning.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..ir import nodes as ir
from . import ops
from .peek_meaning import wait_unless_seen

if TYPE_CHECKING:
    from .meaning import Walk


def _wait(w: Walk, s: ir.Wait) -> None:
    match s.per:
        case "stage" if s.seen:
            wait_unless_seen(w, s)
        case "stage":
            w.add(ops.Wait, s, bar=w.bar(s.barrier), phase=w.round // w.kernel.stages - s.flip)
        case "tile":
            w.add(ops.Wait, s, bar=(s.barrier, w.agent.cta, 0), phase=w.turn - s.flip)
        case "turn":
            # The first warpgroup's first turn comes unasked: it waits for a phase before the first.
            phase = w.turn - (w.agent.warpgroup == 0)
            w.add(ops.Wait, s, bar=(s.barrier, w.agent.cta, w.agent.warpgroup), phase=phase)


def _drain(w: Walk, s: ir.Drain) -> None:
    for _ in range(w.kernel.stages):
        w.add(ops.Wait, s, bar=w.bar(s.barrier), phase=w.round // w.kernel.stages - 1)
        w.round += 1


def _arrive(w: Walk, s: ir.Arrive) -> None:
    """Lanes of one warp arrive at once, so no agent can see one arrival and not know of the other. A single thread is
    lane 0, which does not arrive at the others."""
    match s.to:
        case "own" | "copied":
            bars = [w.bar(s.barrier, s.lag)]
        case "cluster":
            peers = w.peers[: 1 if w.single else None]
            bars = [w.bar(s.barrier, s.lag, c) for c in peers]
        case "next":
            bars = [(s.barrier, w.agent.cta, (w.agent.warpgroup + 1) % w.agent.turns)]
        case "others":
            bars = [(s.barrier, c, 0) for c in range(1, 1 if w.single else w.kernel.cluster.k)]
    w.add(ops.Arrive, s, bars=tuple(bars), count=w.warps)


def _expect(w: Walk, s: ir.ExpectTx) -> None:
    bar = (s.barrier, w.agent.cta, 0) if s.per == "tile" else w.bar(s.barrier)
    expect = (s.tx_bytes or 0) * w.threads
    w.add(ops.Arrive, s, bars=(bar,), count=w.threads, expect=expect)


BARRIERS: dict[type[ir.Stmt], Callable[[Walk, Any], None]] = {
    ir.Wait: _wait,
    ir.Drain: _drain,
    ir.Arrive: _arrive,
    ir.ExpectTx: _expect,
}
