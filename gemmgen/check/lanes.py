"""Lanes of one warp: where all of them are as far as one is.

An operation of whole warps is each lane's own. One lane that arrives says what it has done itself; of
the others it speaks for what they did before they last met, in a Sync of the warp, at a rendezvous or in an
instruction that a warp executes as one (wgmma's are .sync.aligned). And what one lane has waited for, the
others know when they meet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from . import ops
from .ops import Op

MEETINGS = (
    *(ops.WarpSync, ops.Sync, ops.RegisterFence, ops.Multiply, ops.Commit, ops.Retire),
    ops.MapPublish,
)
NEVER = 1 << 60


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """Of one agent: positions of operations at which its lanes meet, and of waits of one lane."""

    todo: tuple[Op, ...]
    meetings: tuple[int, ...]
    waits: tuple[int, ...]

    def single(self, at: int) -> bool:
        return self.todo[at].single

    def over(self, at: int) -> int:
        """What all lanes do at `at` is over for others who know of this position."""
        return at if self.single(at) else self.met(at)

    def met(self, at: int) -> int:
        """Where the lanes first meet from `at` on."""
        i = bisect_left(self.meetings, at)
        return self.meetings[i] if i < len(self.meetings) else NEVER

    def known(self, at: int) -> int:
        """All lanes that work at `at` know what was known here."""
        if self.single(at):
            return at
        i = bisect_right(self.meetings, at)
        last = self.meetings[i - 1] if i else -1
        j = bisect_right(self.waits, last)
        return min(self.waits[j], at) if j < len(self.waits) else at

    def in_order(self, first: int, then: int) -> bool:
        """By program order alone: the same lanes, or they have met between."""
        return first < then and (self.single(first) == self.single(then) or self.met(first) <= then)


def lanes(todo: tuple[Op, ...]) -> Lanes:
    meetings = [at for at, x in enumerate(todo) if isinstance(x, MEETINGS) and not x.single]
    waits = [at for at, x in enumerate(todo) if isinstance(x, ops.Wait) and x.single]
    return Lanes(todo=todo, meetings=tuple(meetings), waits=tuple(waits))
