"""Releases and acquires of global memory by threads of different clusters (PTX ISA, memory consistency model).

A store that releases at the GPU's scope publishes what its thread is ordered after. A load that acquires and finds what
that store wrote is ordered after all of it; in the tracker of its own cluster the release is an agent, with the one time 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .lanes import agent_of, bit
from .syntax import Instruction
from .tracker import ORDERED, View

if TYPE_CHECKING:
    from .group import Group
    from .memory import Writer

WIDE = {"gpu", "sys"}  # scopes that hold threads of other clusters
STRONG = {"acquire", "relaxed", "volatile"}  # loads that may run beside a write


@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """What a thread of a cluster was ordered after."""

    cluster: int
    view: View

    def covers(self, earlier: Writer) -> bool:
        return after(self.view, self.cluster, earlier)


def after(view: View, cluster: int, earlier: Writer) -> bool:
    """Whether who has this view, of that cluster, is ordered after a write: by its own cluster's clocks, or by a release
    that it has acquired."""
    if earlier.cluster == cluster and view.after(earlier.agent, earlier.clock):
        return True
    acquired = view.tracker.acquired
    return any(view.ordered[n] >= 1 and r.covers(earlier) for n, r in acquired.items())


def releases(i: Instruction) -> bool:
    return "release" in i.parts and bool(WIDE & set(i.parts))


def acquires(i: Instruction) -> bool:
    return "acquire" in i.parts and bool(WIDE & set(i.parts))


def publish(g: Group, addresses: Any, lanes: Any) -> None:
    """Each of `lanes` has just stored at its address, and releases."""
    tracker, memory = g.cta.cluster.tracker, g.cta.launch.memory
    for lane, address in zip(lanes, addresses, strict=True):
        clock = tracker.release(agent_of(g, lane), bit(lane))
        view = View(tracker=tracker, ordered=clock[ORDERED])
        memory.releases[int(address)] = Release(cluster=g.cta.cluster.index, view=view)


def acquire(g: Group, addresses: Any, lanes: Any) -> None:
    """Each of `lanes` has just loaded what is at its address."""
    tracker, memory = g.cta.cluster.tracker, g.cta.launch.memory
    for lane, address in zip(lanes, addresses, strict=True):
        found = memory.releases.get(int(address))
        if found is not None:
            number = tracker.agent(("release", id(found)), f"a release at {int(address):#x}")
            tracker.acquired[number] = found
            tracker.observe(agent_of(g, lane), number, 1, bit(lane))
