"""What the statements by which CTAs divide a tile's K mean: see meaning.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..ir import nodes as ir
from . import ops
from .share import share

if TYPE_CHECKING:
    from .meaning import Walk


def _take_share(w: Walk, s: ir.TakeShare) -> None:
    w.blocks = len(share(w.blocks, w.agent.cta, w.kernel.cluster.k))


def _next_turn(w: Walk, s: ir.NextTurn) -> None:
    w.turn += 1


def _send(w: Walk, s: ir.SendPartials) -> None:
    """Stores that follow each other are one operation: nobody can tell the moments between them."""
    _touch(w, s, s.src)
    (acc,) = (r for role in w.kernel.roles for r in role.locals if r.name == s.src)
    size = acc.count * acc.dtype.bytes * w.threads
    copy = ops.Copy(bar=(s.barrier, 0, 0), cells=w.cells(s, 0), size=size, stmt=s)
    w.add(ops.Load, s, copies=(copy,))


def _add(w: Walk, s: ir.AddPartials) -> None:
    w.add(ops.Read, s, cells=w.cells(s))
    _touch(w, s, s.dst)


def _touch(w: Walk, s: ir.Stmt, register: str) -> None:
    if register in w.accumulators:
        w.add(ops.Touch, s, registers=(register,))


EXCHANGE: dict[type[ir.Stmt], Callable[[Walk, Any], None]] = {
    ir.TakeShare: _take_share,
    ir.NextTurn: _next_turn,
    ir.SendPartials: _send,
    ir.AddPartials: _add,
}
