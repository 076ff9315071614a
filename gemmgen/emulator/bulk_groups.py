"""Bulk groups: a thread's asynchronous stores, committed and waited for (PTX ISA, bulk async-group)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .errors import ProtocolError
from .fiber import WARP, Wait
from .group import Group
from .lanes import active_lanes, agent_of, bit, constant
from .program import Op, Scope
from .syntax import Instruction

if TYPE_CHECKING:
    from .tracker import Tracker


@dataclass
class Item:
    """One store: shared memory has been read; global memory has been written."""

    read: bool = False
    written: bool = False


@dataclass(kw_only=True, eq=False)
class Warp:
    """The bulk stores of a warp as two agents, reading and writing. Their time counts the commits of
    the warp, so that threads that commit together share it."""

    reads: int
    writes: int
    count: int = 0
    threads: list[BulkGroups] = field(default_factory=list)

    def observed(self, *, read: bool) -> int:
        """Every group up to this time has been waited for by its thread."""
        return min((b.first_unseen(read=read) for b in self.threads), default=1) - 1


@dataclass(kw_only=True, eq=False)
class BulkGroups:
    """Of one thread: committed groups with the warp's time of their commit."""

    thread: int
    warp: Warp
    current: list[Item] = field(default_factory=list)
    committed: list[tuple[int, tuple[Item, ...]]] = field(default_factory=list)
    seen_read: int = 0  # groups it has waited for, to have read shared memory
    seen_written: int = 0  # and to have written global memory

    def done(self, pending: int, *, read: bool) -> bool:
        """All but the last `pending` groups are complete."""
        first = self.committed[: max(len(self.committed) - pending, 0)]
        return all(i.read if read else i.written for _, items in first for i in items)

    def waited(self, pending: int, *, read: bool) -> None:
        count = max(len(self.committed) - pending, 0)
        self.seen_read = max(self.seen_read, count)
        if not read:
            self.seen_written = max(self.seen_written, count)

    def first_unseen(self, *, read: bool) -> int:
        """The time of the first group that the thread has not waited for."""
        seen = self.seen_read if read else self.seen_written
        return self.committed[seen][0] if seen < len(self.committed) else self.warp.count + 1

    def check_exit(self, cta: int) -> None:
        unseen = len(self.committed) - self.seen_read
        if self.current or unseen:
            raise ProtocolError(
                f"thread {self.thread} of CTA {cta} exits with bulk stores that may still read shared "
                f"memory: {unseen} groups not waited for, {len(self.current)} stores not committed"
            )


def group_of(g: Group, lane: int) -> BulkGroups:
    """The thread's groups, created on first use."""
    thread, cta = int(g.first + lane), g.cta
    if thread not in cta.bulk:
        warp = cta.bulk_warps.get(thread // WARP)
        if warp is None:
            tracker: Tracker = cta.cluster.tracker
            name = f"bulk stores of warp {thread // WARP} of CTA {cta.index}"
            warp = cta.bulk_warps[thread // WARP] = Warp(
                reads=tracker.agent((cta.rank, "reads", thread // WARP), f"{name}, reading"),
                writes=tracker.agent((cta.rank, "writes", thread // WARP), f"{name}, writing"),
            )
        cta.bulk[thread] = BulkGroups(thread=thread, warp=warp)
        warp.threads.append(cta.bulk[thread])
    return cta.bulk[thread]


def commit(i: Instruction, s: Scope) -> Op:
    def op(g: Group) -> None:
        groups = [group_of(g, x) for x in active_lanes(g)]
        times = {id(b.warp): b.warp.count + 1 for b in groups}
        for b in groups:
            b.committed.append((times[id(b.warp)], tuple(b.current)))
            b.current = []
            b.warp.count = times[id(b.warp)]

    return op


def wait(i: Instruction, s: Scope) -> Op:
    pending, read = constant(i.operands[0], i), "read" in i.parts

    def op(g: Group) -> int | None:
        lanes = [x for x in active_lanes(g) if g.first + x in g.cta.bulk]
        groups = [group_of(g, x) for x in lanes]
        if not all(b.done(pending, read=read) for b in groups):
            return g.park(
                Wait(
                    ready=lambda: all(b.done(pending, read=read) for b in groups),
                    what=lambda: "bulk stores to " + ("read" if read else "finish"),
                    merge=True,
                )
            )
        for b in groups:
            b.waited(pending, read=read)
        warps: dict[int, tuple[Warp, int]] = {}
        for x, b in zip(lanes, groups, strict=True):
            _, mask = warps.get(agent_of(g, x), (b.warp, 0))
            warps[agent_of(g, x)] = b.warp, mask | bit(x)
        for agent, (warp, mask) in warps.items():
            _observe(g, agent, warp, mask, read)
        return None

    return op


def _observe(g: Group, agent: int, warp: Warp, lanes: int, read: bool) -> None:
    tracker = g.cta.cluster.tracker
    tracker.observe(agent, warp.reads, warp.observed(read=True), lanes)
    if not read:
        tracker.observe(agent, warp.writes, warp.observed(read=False), lanes)
