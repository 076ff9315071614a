"""Releases and acquires of global memory by threads of different clusters and GPUs (PTX ISA, memory consistency model).

A store that releases at the GPU's scope publishes what its thread is ordered after. A load that acquires and finds what
that store wrote is ordered after all of it; in the tracker of its own cluster the release is an agent, with the one time 1.
Threads of two GPUs are both in the system's scope only. A launch is ordered after those before it on its GPU, and what they
acquired.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from .lanes import agent_of, bit
from .syntax import Instruction
from .tracker import ORDERED, Tracker
from .views import View

if TYPE_CHECKING:
    from .group import Group
    from .memory import Writer

WIDE = {"gpu", "sys"}  # scopes that hold threads of other clusters
WIDEST = "sys"  # of other GPUs
STRONG = {"acquire", "relaxed", "volatile"}  # loads that may run beside a write


class Origin(NamedTuple):
    """A cluster: of which GPU, of which launch there, and of which number in that."""

    device: int
    launch: int
    number: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """What a thread of a cluster was ordered after, told to whom `scope` holds."""

    cluster: Origin
    view: View
    scope: str
    known: dict[int, bool] = field(default_factory=dict)  # by writer, which memory keeps

    def covers(self, earlier: Writer) -> bool:
        """What a view holds does not change, and asking through all that it has acquired is costly."""
        if id(earlier) not in self.known:
            self.known[id(earlier)] = after(self.view, self.cluster, earlier)
        return self.known[id(earlier)]

    def reaches(self, device: int, scope: str) -> bool:
        """Whether a thread of that GPU, which acquires at that scope, is told."""
        return device == self.cluster.device or {self.scope, scope} == {WIDEST}


@dataclass(frozen=True, kw_only=True)
class Past:
    """What a launch is ordered after. over: by GPU, how many of its launches are; acquired: what launches before this one on
    its GPU have acquired of others that may still have run."""

    device: int = 0
    launch: int = 0
    over: dict[int, int] = field(default_factory=dict)
    acquired: dict[Origin, list[Release]] = field(default_factory=dict)

    def outlives(self, earlier: Writer) -> bool:
        """The write's launch is over."""
        return earlier.cluster.launch < self.over.get(earlier.cluster.device, 0)

    def then(self, acquired: Iterable[Release]) -> Past:
        """Of the next launch on this GPU, where this one acquired these."""
        before = chain.from_iterable(self.acquired.values())
        found = [r for r in (*before, *acquired) if r.cluster.device != self.device]
        over = {**self.over, self.device: self.launch + 1}
        for r in found:
            theirs = {**r.view.tracker.past.over, r.cluster.device: r.cluster.launch}
            over |= {d: max(n, over.get(d, 0)) for d, n in theirs.items()}
        kept: dict[Origin, list[Release]] = {}
        for r in found:
            if r.cluster.launch >= over[r.cluster.device]:
                kept.setdefault(r.cluster, []).append(r)
        return Past(device=self.device, launch=self.launch + 1, over=over, acquired=kept)


def after(view: View, cluster: Origin, earlier: Writer) -> bool:
    """Whether who has this view, of that cluster, is ordered after a write: by its own cluster's clocks, by what its launch is
    ordered after, or by a release that it has acquired."""
    if earlier.cluster == cluster and view.after(earlier.agent, earlier.clock):
        return True
    tracker = view.tracker
    past = tracker.past
    if past.outlives(earlier):
        return True
    mine = tracker.releases_of.get(earlier.cluster, ())
    told = [tracker.acquired[n] for n in mine if view.ordered[n] >= 1]
    told += past.acquired.get(earlier.cluster, [])
    if any(r.view.after(earlier.agent, earlier.clock) for r in told):
        return True
    others = [r for n, r in tracker.acquired.items() if view.ordered[n] >= 1]
    return any(r.covers(earlier) for r in (*others, *chain.from_iterable(past.acquired.values())))


def releases(i: Instruction) -> str:
    """The scope at which it does, if that holds other clusters; "" if not."""
    return _scope(i) if {"release", "acq_rel"} & set(i.parts) else ""


def acquires(i: Instruction) -> str:
    return _scope(i) if {"acquire", "acq_rel"} & set(i.parts) else ""


def _scope(i: Instruction) -> str:
    return next((p for p in i.parts if p in WIDE), "")


def publish(g: Group, addresses: Any, lanes: Any, scope: str) -> None:
    """Each of `lanes` has just stored at its address, and releases."""
    tracker, memory = g.cta.cluster.tracker, g.cta.launch.memory
    for lane, address in zip(lanes, addresses, strict=True):
        clock = tracker.release(agent_of(g, lane), bit(lane))
        view = View(tracker=tracker, ordered=clock[ORDERED])
        memory.releases[int(address)] = Release(
            cluster=g.cta.cluster.origin, view=view, scope=scope
        )


def acquire(g: Group, addresses: Any, lanes: Any, scope: str) -> None:
    """Each of `lanes` has just loaded what is at its address."""
    tracker, memory = g.cta.cluster.tracker, g.cta.launch.memory
    for lane, address in zip(lanes, addresses, strict=True):
        found = memory.releases.get(int(address))
        if found is not None and found.reaches(g.cta.cluster.origin.device, scope):
            number = acquired(tracker, found, f"a release at {int(address):#x}")
            tracker.observe(agent_of(g, lane), number, 1, bit(lane))


def acquired(tracker: Tracker, found: Release, text: str) -> int:
    """The number of the agent that a release is in a cluster's tracker, whose threads then acquire it."""
    number = tracker.agent(("release", id(found)), text)
    if number not in tracker.acquired:
        tracker.acquired[number] = found
        tracker.releases_of.setdefault(found.cluster, []).append(number)
    return number
