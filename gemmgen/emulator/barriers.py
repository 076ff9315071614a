"""Barriers of a CTA (bar, barrier.cta) and of a cluster (barrier.cluster)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .errors import ProtocolError, UnsupportedInstruction
from .fiber import WARP, Wait
from .group import Group
from .lanes import lane_mask, per_warp, who
from .program import Handler, Op, Scope
from .syntax import Instruction

if TYPE_CHECKING:
    from .machine import Cluster, Cta
    from .tracker import Clock, Tracker

COUNT = 16  # named barriers per CTA


@dataclass(kw_only=True, eq=False)
class NamedBarrier:
    """`arrived` threads of `expected` (None: every live thread of the CTA) in this generation."""

    number: int
    generation: int = 0
    arrived: int = 0
    expected: int | None = None
    clock: Clock | None = None
    waiting: list[int] = field(default_factory=list)  # agents that sync, not only arrive
    arrivals: dict[int, int] = field(default_factory=dict)  # agent -> its time, this generation
    before: dict[int, int] = field(default_factory=dict)  # the same, of the last generation
    released: frozenset[int] = frozenset()  # agents that waited for the last generation

    def wanted(self, cta: Cta) -> int:
        return cta.live_threads() if self.expected is None else self.expected

    def arrive(self, g: Group, expected: int | None, *, sync: bool) -> int:
        """All active warps arrive; the generation they arrived in."""
        if self.arrived and self.expected != expected:
            raise ProtocolError(
                f"{who(g)}: barrier {self.number} with {expected} threads; others came with "
                f"{self.expected}"
            )
        self.expected = expected
        g.cta.launch.moved()
        tracker, mine = g.cta.cluster.tracker, self.generation
        for agent, lanes in per_warp(g):
            self._check_generation(agent, tracker, who(g))
            self.arrivals[agent] = tracker.time(agent)
            published = tracker.release(agent, lane_mask(lanes))
            self.clock = published if self.clock is None else np.maximum(self.clock, published)
            self.arrived += WARP
            if sync:
                self.waiting.append(agent)
        self.check(g.cta, who(g))
        return mine

    def _check_generation(self, agent: int, tracker: Tracker, text: str) -> None:
        """A warp that did not wait for the last generation must come after all its arrivals, or it
        could have been taken for one of them."""
        seen = tracker.seen(agent)[0]
        early = [a for a, time in self.before.items() if seen[a] < time]
        if early and agent not in self.released:
            raise ProtocolError(
                f"{text}: {tracker.names[agent]} may arrive at barrier {self.number} among those of its "
                f"last use, {tracker.names[early[0]]} for instance"
            )

    def check(self, cta: Cta, text: str) -> None:
        """Complete the generation if everyone is here."""
        if self.arrived == 0 or self.arrived < self.wanted(cta):
            return
        if self.arrived > self.wanted(cta):
            raise ProtocolError(
                f"{text}: {self.arrived} threads at barrier {self.number} of {self.wanted(cta)}"
            )
        assert self.clock is not None
        for agent in self.waiting:
            cta.cluster.tracker.acquire(agent, self.clock)
        self.generation += 1
        self.before, self.released = self.arrivals, frozenset(self.waiting)
        self.arrived, self.clock, self.waiting, self.arrivals = 0, None, [], {}


def _bar(i: Instruction, s: Scope) -> Op:
    words = [p for p in i.parts[1:] if p not in ("cta", "aligned")]
    if words not in (["sync"], ["arrive"]):
        raise UnsupportedInstruction(str(i))
    sync, aligned = words == ["sync"], i.parts[0] == "bar" or "aligned" in i.parts
    slots = [s.src(o, "u32") for o in i.operands]

    def op(g: Group) -> int | None:
        if (waiting := g.collect(aligned=aligned)) is not None:
            return waiting
        number, threads = _arguments(g, slots)
        barrier = g.cta.named.setdefault(number, NamedBarrier(number=number))
        mine = barrier.arrive(g, threads, sync=sync)
        if not sync or barrier.generation > mine:
            return None
        return g.sleep(
            Wait(
                ready=lambda: barrier.generation > mine,
                what=lambda: (
                    f"barrier {number}: {barrier.arrived} of {barrier.wanted(g.cta)} threads"
                ),
            )
        )

    return op


def _arguments(g: Group, slots: list[int]) -> tuple[int, int | None]:
    """Barrier number and thread count, the same in all active lanes."""
    values = [np.unique(g.R[x][g.active]) for x in slots]
    if any(v.size != 1 for v in values):
        raise ProtocolError(f"{who(g)}: its operands differ between the threads of a warpgroup")
    number = int(values[0][0])
    threads = int(values[1][0]) if len(values) > 1 else None
    if number >= COUNT or (threads is not None and (threads % WARP or threads == 0)):
        raise ProtocolError(f"{who(g)}: barrier {number}, {threads} threads")
    return number, threads


@dataclass(kw_only=True, eq=False)
class ClusterBarrier:
    """barrier.cluster: every live thread of the cluster arrives, then waits, or exits."""

    cluster: Cluster
    generation: int = 0
    arrived: dict[int, int] = field(default_factory=dict)  # agent -> generation it arrived in
    count: int = 0
    publishing: Clock | None = None
    published: Clock | None = None
    met: set[int] = field(default_factory=set)  # ranks of CTAs that have waited: all have begun

    def check(self) -> None:
        if self.count and self.count >= self.cluster.live_warps():
            self.generation += 1
            self.published, self.publishing, self.count = self.publishing, None, 0

    def leave(self, agent: int) -> None:
        """It exits: nobody waits for it, nor does its arrival stand for another's."""
        if self.arrived.pop(agent, None) == self.generation:
            self.count -= 1

    def arrive(self, agent: int, clock: Clock, text: str) -> None:
        if agent in self.arrived:
            raise ProtocolError(f"{text}: arrives at the cluster barrier twice without waiting")
        self.arrived[agent] = self.generation
        self.publishing = clock if self.publishing is None else np.maximum(self.publishing, clock)
        self.count += 1


def _cluster(i: Instruction, s: Scope) -> Op:
    return _cluster_arrive(i) if "arrive" in i.parts else _cluster_wait(i)


def _cluster_arrive(i: Instruction) -> Op:
    relaxed, aligned = "relaxed" in i.parts, "aligned" in i.parts

    def op(g: Group) -> int | None:
        if (waiting := g.collect(aligned=aligned)) is not None:
            return waiting
        tracker = g.cta.cluster.tracker
        for agent, lanes in per_warp(g):
            mask = lane_mask(lanes)
            clock = tracker.fenced(agent).copy() if relaxed else tracker.release(agent, mask)
            g.cta.cluster.barrier.arrive(agent, clock, who(g))
        g.cta.cluster.barrier.check()
        return None

    return op


def _cluster_wait(i: Instruction) -> Op:
    aligned = "aligned" in i.parts

    def op(g: Group) -> int | None:
        if (waiting := g.collect(aligned=aligned)) is not None:
            return waiting
        barrier, tracker = g.cta.cluster.barrier, g.cta.cluster.tracker
        agents = [agent for agent, _ in per_warp(g)]
        if any(a not in barrier.arrived for a in agents):
            raise ProtocolError(f"{who(g)}: waits at the cluster barrier without having arrived")
        mine = barrier.arrived[agents[0]]
        if barrier.generation <= mine:
            return g.park(
                Wait(
                    ready=lambda: barrier.generation > mine,
                    what=lambda: (
                        f"the cluster barrier: {barrier.count} of "
                        f"{g.cta.cluster.live_warps()} warps"
                    ),
                    merge=True,
                )
            )
        assert barrier.published is not None
        barrier.met.add(g.cta.rank)
        for agent in agents:
            del barrier.arrived[agent]
            tracker.acquire(agent, barrier.published)
        return None

    return op


def _barrier(i: Instruction, s: Scope) -> Op:
    return _cluster(i, s) if i.parts[1] == "cluster" else _bar(i, s)


HANDLERS: Mapping[str, Handler] = {"bar": _bar, "barrier": _barrier}
