"""Launches on several GPUs, each a sequence on its own, that can access each other's memory and run at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .copies import Engine, Job
from .errors import Deadlock, EmulatorError
from .flags import Past
from .launch import Argument, Entry, initialised, pack, sized
from .machine import STUCK, Cluster, GridRun, chosen, deadlock, explained, retired, take
from .memory import GlobalMemory
from .schedule import RoundRobin, Schedule
from .stats import Stats


@dataclass(frozen=True, kw_only=True)
class Started:
    """What `launch` takes of one. All of its CTAs run at once (a cooperative launch). first: what is copied, on the same stream,
    before it begins; beside: from when the launch before is over, on a stream of its own, after which this one is over. behind: it begins
    though what is beside the one before it goes on; not what is beside the one before that."""

    entry: Entry
    grid: int
    block: int
    cluster: int | None = None
    shared_bytes: int
    params: Sequence[Argument]
    first: Sequence[Job] = ()
    beside: Sequence[Job] = ()
    behind: bool = False


def launch_ranks(
    launches: Sequence[Sequence[Started]],
    *,
    memory: GlobalMemory,
    schedule: Schedule | None = None,
    most_turns: int | None = None,
) -> list[list[Stats]]:
    """Run the launches of each GPU one after the other, those of all GPUs beside each other, until all are over. GPU r is
    refused memory that was allocated for another device alone. Returns the statistics of each launch. Raises what `launch` does."""
    memory.new_launch()
    node = _Node(memory=memory, schedule=schedule or RoundRobin(), most_turns=most_turns)
    gpus = [
        _Gpu(node=node, todo=list(mine), past=Past(device=r)) for r, mine in enumerate(launches)
    ]
    with np.errstate(all="ignore"):
        while active := [c for g in gpus for c in g.running()]:
            try:
                node.turn(gpus, active)
                for g in gpus:
                    g.active = retired(g.active)
            except EmulatorError as e:
                raise explained(e, active) from e
    return [g.stats for g in gpus]


@dataclass(kw_only=True)
class _Node:
    """What the GPUs share."""

    memory: GlobalMemory
    schedule: Schedule
    most_turns: int | None
    turns: int = 0

    def turn(self, gpus: Sequence[_Gpu], active: Sequence[Cluster]) -> None:
        # Where only copies are left, there is nobody to be idle.
        threads = (g.run for g in gpus if g.run and any(c.groups for c in g.active))
        idle = min((run.idle for run in threads), default=0)
        if idle > STUCK:
            raise deadlock(active)
        if self.most_turns is not None and self.turns > self.most_turns:
            raise Deadlock(f"still running after {self.most_turns} turns")
        turn = chosen(self.schedule, active, self.turns, idle)
        self.turns += 1
        for g in gpus:
            g.at(self.turns)
        if turn is None:
            raise deadlock(active)
        take(turn, active)


@dataclass(kw_only=True)
class _Gpu:
    node: _Node
    todo: list[Started]
    past: Past
    run: GridRun | None = None
    every: list[Cluster] = field(default_factory=list)  # of the running launch
    active: list[Cluster] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)  # of launches, in their order
    stats: list[Stats] = field(default_factory=list)

    def running(self) -> list[Cluster]:
        """Clusters of the launch that runs, and what is copied: the next one begins where one is over."""
        self.engines = [e for e in self.engines if not e.done]
        if not self.active and self.todo and len(self.engines) <= self.todo[0].behind:
            if self.run:
                self.past = self.past.then(
                    r for c in self.every for r in c.tracker.acquired.values()
                )
            x = self.todo.pop(0)
            self.run = self._begin(x)
            before = Engine(self.run, x.first, before=1)
            for job in x.first:
                before.do(job)
            self.every = [
                Cluster(self.run, i, self.run.cluster_size)
                for i in range(self.run.grid // self.run.cluster_size)
            ]
            self.active = list(self.every)
            self.engines += [Engine(self.run, x.beside)] * bool(x.beside)
        return [*self.active, *self.engines[:1]]

    def _begin(self, x: Started) -> GridRun:
        cluster = sized(x.entry, x.grid, x.block, x.cluster, x.shared_bytes)
        initialised(x.entry, self.node.memory)
        run = GridRun(
            program=x.entry.program,
            grid=x.grid,
            block=x.block,
            cluster_size=cluster,
            shared_bytes=x.shared_bytes,
            params=pack(x.entry.params, x.params),
            memory=self.node.memory.seen_by(self.past.device),
            schedule=self.node.schedule,
            past=self.past,
        )
        run.begin()
        self.stats.append(run.stats)
        return run

    def at(self, turns: int) -> None:
        """The time, by which operations in flight are told."""
        if self.run:
            self.run.stats.turns = turns
