"""The state of a simulated cluster: its agents, its barriers, what is under way, and the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import heappush
from typing import Any

from ..check.ops import Bar, Copy, Op, Program
from ..errors import IRError
from .latency import Latency
from .timeline import Flight, Phase, Step

Group = tuple[int, int]  # when what was committed let go of what it read, and when it was done


@dataclass(kw_only=True)
class Barrier:
    """An mbarrier's phase, the arrivals and bytes it lacks, and the agents that wait."""

    total: int
    pending: int
    tx: int = 0
    phase: int = 0
    waiters: list[int] = field(default_factory=list)


@dataclass(kw_only=True)
class Worker:
    """Where an agent is: operations done, since when it is at the next, what it has under way."""

    at: int = 0
    since: int = 0
    steps: list[Step] = field(default_factory=list)
    products: list[int] = field(default_factory=list)  # ends of the committed groups
    product: int = 0  # end of the last Multiply
    stores: list[Group] = field(default_factory=list)
    store: Group = (0, 0)  # of the last Store
    copies: list[int] = field(default_factory=list)  # when groups of copies have come
    meets: bool = False  # stands in a rendezvous


# What operations are not over at once, and when they are: None while they are blocked.
Meaning = Mapping[type[Op], Callable[["Simulation", int, Any, int], int | None]]


@dataclass(kw_only=True)
class Simulation:
    """The state of the cluster at one moment, and what is still to happen."""

    program: Program
    latency: Latency
    meaning: Meaning
    workers: list[Worker]
    events: list[tuple[int, int, Callable[[int], None]]] = field(default_factory=list)
    events_ever: int = 0
    barriers: dict[Bar, Barrier] = field(default_factory=dict)
    meetings: dict[Bar, list[int]] = field(default_factory=dict)
    entered: set[int] = field(default_factory=set)  # agents that have begun, as their cluster knows
    free: dict[tuple[str, int], int] = field(default_factory=dict)  # when a CTA's resource is
    flights: list[Flight] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)

    def at(self, time: int, happens: Callable[[int], None]) -> None:
        """What is to happen at the same time happens in the order of these calls."""
        heappush(self.events, (time, self.events_ever, happens))
        self.events_ever += 1

    def occupy(self, resource: str, cta: int, now: int, cycles: int) -> int:
        """When a request of so many cycles, made now, has been served."""
        end = max(now, self.free.get((resource, cta), 0)) + cycles
        self.free[resource, cta] = end
        return end

    def go_on(self, agent: int, now: int) -> None:
        """Let the agent work until it has to wait, or until time must pass."""
        w, todo = self.workers[agent], self.program.ops[agent]
        while w.at < len(todo):
            op = todo[w.at]
            meaning = self.meaning.get(type(op))
            end = meaning(self, agent, op, now) if meaning else now
            if end is None:
                return
            self.done(agent, end)
            if end > now:
                self.at(end, partial(self.go_on, agent))
                return

    def done(self, agent: int, end: int) -> None:
        w = self.workers[agent]
        w.steps.append(Step(op=self.program.ops[agent][w.at], start=w.since, end=end))
        w.at, w.since = w.at + 1, end

    def arrive(self, bar: Bar, count: int, tx: int, now: int) -> None:
        """Arrivals come one by one: some may complete a phase, and the rest begin the next."""
        b = self.barriers[bar]
        b.tx += tx
        while count:
            taken = min(count, b.pending)
            if not taken:
                raise IRError(f"{bar[0]}[{bar[2]}] phase {b.phase}: more arrivals than {b.total}")
            b.pending, count = b.pending - taken, count - taken
            self.complete(bar, now)

    def land(self, copy: Copy, now: int) -> None:
        self.barriers[copy.bar].tx -= copy.size
        self.complete(copy.bar, now)

    def complete(self, bar: Bar, now: int) -> None:
        b = self.barriers[bar]
        if b.pending or b.tx:
            return
        self.phases.append(Phase(bar=bar, number=b.phase, at=now))
        b.phase, b.pending = b.phase + 1, b.total
        woken, b.waiters = b.waiters, []
        for agent in woken:
            self.at(now, partial(self.go_on, agent))
