"""What the statements by which CTAs divide a tile's K mean: see meaning.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..ir import nodes as ir
from ..ir.dealing import share
from ..ir.exchange import PARTIALS
from . import ops, ranks_meaning
from .one_lane import one_lane
from .ops import Bar

if TYPE_CHECKING:
    from .meaning import Walk


def _take_share(w: Walk, s: ir.TakeShare) -> None:
    if s.of == "cluster":
        w.blocks = len(share(w.blocks, w.agent.cta, w.kernel.cluster.k))
    else:
        before = w.share_end if s.of == "next" else 0
        w.share_end = before + len(share(w.blocks, 0, w.kernel.shares))


def _next_turn(w: Walk, s: ir.NextTurn) -> None:
    w.turn += 1


def _send(w: Walk, s: ir.SendPartials) -> None:
    """Stores that follow each other are one operation: nobody can tell the moments between them."""
    _touch(w, s, s.src)
    if s.through in ("ranks", "every_rank"):
        ranks_meaning.send(w, s)
        return
    if s.through == "cta":
        w.add(ops.Write, s, cells=w.cells(s))
        return
    if s.through == "memory":
        w.add(ops.Write, s, cells=w.cells(s))
        w.add(ops.WarpSync, s)
        one_lane(w, s, ops.Arrive, bars=(_flag(w, s, w.agent.cta),), count=1)
        return
    (acc,) = (r for role in w.kernel.roles for r in role.locals if r.name == s.src)
    size = acc.count * acc.dtype.bytes * w.threads
    copy = ops.Copy(bar=(s.barrier, 0, 0), cells=w.cells(s, 0), size=size, stmt=s)
    w.add(ops.Load, s, copies=(copy,))


def _add(w: Walk, s: ir.AddPartials) -> None:
    if s.through == "memory":
        assert w.part is not None
        others = [w.agent.cta - i for i in range(1, 1 + w.part.others)]
        for cta in others:
            one_lane(w, s, ops.Wait, bar=_flag(w, s, cta), phase=0)
        w.add(ops.WarpSync, s)
        for cta in others:
            w.add(ops.Read, s, cells=w.cells(s, cta))
    elif s.through in ("ranks", "every_rank"):
        ranks_meaning.add(w, s)
    else:
        w.add(ops.Read, s, cells=w.cells(s))
    _touch(w, s, s.dst)


def _flag(w: Walk, s: ir.SendPartials | ir.AddPartials, cta: int) -> Bar:
    """This warp's, of the wave, in the slot of `cta`. Warps that walk together have one."""
    warps = (s.wave * w.kernel.consumers + w.agent.share) * 4
    return PARTIALS, cta, warps + w.agent.warps[0]


def _touch(w: Walk, s: ir.Stmt, register: str) -> None:
    if register in w.accumulators:
        w.add(ops.Touch, s, registers=(register,))


EXCHANGE: dict[type[ir.Stmt], Callable[[Walk, Any], None]] = {
    ir.TakeShare: _take_share,
    ir.NextTurn: _next_turn,
    ir.SendPartials: _send,
    ir.AddPartials: _add,
    **ranks_meaning.RANKS,
}
