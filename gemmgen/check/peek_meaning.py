"""What it means to look at a stage before it is waited for: see meaning.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..ir import nodes as ir
from . import ops

if TYPE_CHECKING:
    from .meaning import Walk

NOTHING = None  # what a register of 0 has seen

# By register: the barrier's stage and the phase that the last Peek into it looked at.
Seen = dict[str, tuple[ops.Bar, int] | None]


def _zero(w: Walk, s: ir.Zero) -> None:
    w.touch(s)
    w.seen[s.dst] = NOTHING


def _peek(w: Walk, s: ir.Peek) -> None:
    """Who has seen a phase over has synchronised with those who ended it, as who has waited for it. What was not
    over yet is waited for later. So the order is that of a wait at the later place, or one that holds more."""
    following = w.round + 1
    w.seen[s.dst] = (w.bar(s.barrier, lag=-1), following // w.kernel.stages)


def wait_unless_seen(w: Walk, s: ir.Wait) -> None:
    """If another phase was looked at, or nobody knows what, that may be over while this one is not: no wait."""
    wanted = (w.bar(s.barrier), w.round // w.kernel.stages - s.flip)
    if s.seen in w.seen and w.seen[s.seen] in (NOTHING, wanted):
        w.add(ops.Wait, s, bar=wanted[0], phase=wanted[1])


PEEKS: dict[type[ir.Stmt], Callable[[Walk, Any], None]] = {
    ir.Zero: _zero,
    ir.Peek: _peek,
}
