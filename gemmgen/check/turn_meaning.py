"""What the statements by which warpgroups take tiles in turns mean: see meaning.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..ir import nodes as ir
from . import ops

if TYPE_CHECKING:
    from .meaning import Walk


def _wait(w: Walk, s: ir.WaitForTurn) -> None:
    """The first warpgroup's first turn comes unasked: it waits for a phase before the first."""
    phase = w.turn - (w.agent.warpgroup == 0)
    w.add(ops.Wait, s, bar=(s.barrier, w.agent.cta, w.agent.warpgroup), phase=phase)


def _pass(w: Walk, s: ir.PassTurn) -> None:
    following = (w.agent.warpgroup + 1) % w.agent.turns
    w.add(ops.Arrive, s, bars=((s.barrier, w.agent.cta, following),), count=w.warps)


TURNS: dict[type[ir.Stmt], Callable[[Walk, Any], None]] = {
    ir.WaitForTurn: _wait,
    ir.PassTurn: _pass,
}
