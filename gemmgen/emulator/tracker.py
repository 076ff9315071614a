"""Happens-before by vector clocks, over warps, the lanes of warps and the asynchronous engines.

Agents are the warps of a cluster, and one per stream of asynchronous operations: the loads that
complete on one mbarrier (time = phase), the wgmma groups of a warpgroup, the bulk stores of a thread
(time = group), their reads of shared memory apart from their writes, the mbarrier.init of a warp. An
operation starts with what its issuer has seen; others are ordered after it once they have waited for its
completion.

A warp's lanes may be apart: what one of them waits for orders that one alone, and what one of them releases
is its own accesses, and those of the others up to where they last met. They meet in bar.warp.sync and in whatever a
warp executes as one (.sync.aligned). A lane that releases alone is an agent of its own, from then on.

Each clock has three rows: what is ordered before, and what of that is also visible to the async proxy in the
writer's own shared memory, and in that of the rest of the cluster, which takes the writer's own
fence.proxy.async of that state space (PTX ISA, "Proxies").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import Race
from .fiber import each
from .loads import Loads

if TYPE_CHECKING:
    from .flags import Origin, Past, Release

Clock = npt.NDArray[np.int64]  # [3, agents]
ORDERED, FENCED, FENCED_REMOTE = range(3)  # rows of a clock

ALL = 0xFFFFFFFF  # lanes of a warp
EVER = 1 << 62  # a warp's accesses are never unordered with its own
AGENTS_PER_CTA = 192


@dataclass(kw_only=True)
class Lanes:
    """A warp: its time, and how far its lanes are apart. Lanes are bits of integers."""

    alive: int
    time: int = 1
    met: int = 0  # when the lanes last met: what they did up to then, each of them releases
    touched: int = 0  # lanes that accessed memory since
    now: int = 0  # of those, at this time
    since: list[int] = field(default_factory=list)  # times at which they did
    partly: bool = False  # some of them released without the others since
    apart: dict[int, Clock] = field(default_factory=dict)  # lanes that have seen more than the warp
    unfenced: list[int] = field(default_factory=lambda: [0, 0])  # wrote, own and remote memory
    inits: int = 0  # mbarriers initialised


class Tracker:
    """The agents of one cluster and the clocks of its warps."""

    def __init__(self, ctas: int, warps: int, past: Past) -> None:
        self.ctas, self.warps = ctas, warps
        self.past = past  # what all of it is ordered after
        self.names = [
            "nobody",
            *(f"warp {w} of CTA {c}" for c in range(ctas) for w in range(warps)),
        ]
        self.capacity = len(self.names) + AGENTS_PER_CTA * ctas
        self._numbers: dict[object, int] = {}
        self._clocks = np.zeros((len(self.names), 3, self.capacity), np.int64)
        self._fenced = np.zeros_like(self._clocks)
        self._lanes = [Lanes(alive=ALL) for _ in self.names]
        self._accessed: dict[tuple[int, int], int] = {}  # warp, time -> lanes
        self.acquired: dict[int, Release] = {}  # by agent
        self.releases_of: dict[Origin, list[int]] = {}  # by cluster, those agents
        self.proxied: dict[tuple[int, int], Any] = {}  # by warp and lane: see `arrive`
        self.loose: set[int] = set()  # warps whose lanes have something to meet for
        self.loads = Loads()
        for agent in range(1, len(self.names)):
            self._clocks[agent, ORDERED, agent] = EVER

    # Who there is.

    def warp(self, rank: int, warp: int) -> int:
        """The agent of a warp of the CTA of rank `rank`."""
        return 1 + rank * self.warps + warp

    def remote(self, agents: Any, rank: int) -> Any:
        """Which of `agents` are warps of other CTAs than that of rank `rank`, or st.async into it."""
        return (agents - 1) // self.warps != rank

    def agent(self, key: object, name: str) -> int:
        """The agent of a stream of asynchronous operations, or of a lane."""
        if key not in self._numbers:
            self._numbers[key] = len(self.names)
            self.names.append(name)
            if len(self.names) > self.capacity:
                raise Race(f"more than {self.capacity} agents in a cluster are not tracked")
        return self._numbers[key]

    def live(self, agent: int, lanes: int) -> None:
        """These are left, after others exited."""
        self._lanes[agent].alive = lanes

    def lanes_of(self, agent: int) -> list[int]:
        """The agents of the warp's lanes that released alone."""
        return [n for x in range(32) if (n := self._numbers.get(("lane", agent, x)))]

    # What they have seen.

    def clocks(self, first: int, warps: int, cta: Any) -> Any:
        """[warps, 3, agents]: the clocks of adjacent warps, a view; of lanes that have met."""
        agent = self.warp(cta.rank, first)
        return self._clocks[agent : agent + warps]

    def seen(self, agent: int, lanes: int = ALL) -> Clock:
        """What each of these lanes is ordered after."""
        mine = self._lanes[agent]
        found: Clock = self._clocks[agent]
        if not mine.apart:
            return found
        found, *more = self._views(agent, lanes, mine)
        for clock in more:
            found = np.minimum(found, clock)
        return found

    def apart(self, agent: int) -> list[int]:
        """Lanes that have seen what the warp has not."""
        return list(self._lanes[agent].apart)

    def latest(self, agent: int) -> Clock:
        """What some lane of the warp is ordered after."""
        found: Clock = np.maximum.reduce([self._clocks[agent], *self._lanes[agent].apart.values()])
        return found

    def empty(self) -> Clock:
        return np.zeros((3, self.capacity), np.int64)

    def time(self, agent: int) -> int:
        return self._lanes[agent].time

    def covers(self, row: Any, agent: int, time: int, lanes: int = 0) -> bool:
        """By a row of a clock, what the agent did at that time is over: all that it did up to there,
        or what each of `lanes` did, by default those that accessed memory then."""
        if row[agent] >= time:
            return True
        if not lanes:
            now = agent < len(self._lanes) and time == self._lanes[agent].time
            lanes = self._lanes[agent].now if now else self._accessed.get((agent, time), 0)
        columns = (self._numbers.get(("lane", agent, x)) for x in each(lanes))
        return bool(lanes) and all(c is not None and row[c] >= time for c in columns)

    # What they do.

    def touch(self, agent: int, lanes: int) -> int:
        """These lanes access memory: the time."""
        mine = self._lanes[agent]
        mine.now |= lanes
        mine.touched |= lanes
        self.loose.add(agent)
        return mine.time

    def release(self, agent: int, lanes: int = ALL) -> Clock:
        """What these lanes publish now; what they do from here on is later."""
        return self._release(agent, lanes, self._lanes[agent].touched & ~lanes != 0)

    def _release(self, agent: int, lanes: int, apart: bool) -> Clock:
        """`apart`: of the warp's own accesses only theirs, lane by lane."""
        mine = self._lanes[agent]
        published: Clock = self._clocks[agent].copy()
        if mine.apart:
            published = np.maximum.reduce(list(self._views(agent, lanes, mine)))
        fenced, upto = self._clocks[agent, FENCED:, agent], mine.time
        if apart:
            upto, mine.partly = mine.met, True
            for lane in each(lanes & mine.alive):
                column = self.agent(("lane", agent, lane), f"lane {lane} of {self.names[agent]}")
                published[ORDERED, column] = mine.time
                published[FENCED:, column] = fenced
        published[ORDERED, agent] = upto
        published[FENCED:, agent] = np.minimum(fenced, upto)
        self.tick(agent)
        return published

    def acquire(self, agent: int, clock: Clock, lanes: int = ALL) -> None:
        for mine in self._written(agent, lanes):
            np.maximum(mine, clock, out=mine)

    def observe(self, agent: int, other: int, time: int, lanes: int = ALL) -> None:
        """These lanes have waited for `other` up to `time`; async writes need no proxy fence."""
        for mine in self._written(agent, lanes):
            mine[:, other] = np.maximum(mine[:, other], time)

    def meet(self, agent: int, lanes: int = ALL) -> None:
        """These lanes wait for each other, and see what each of them did and saw."""
        if (mine := self._lanes[agent]).alive & ~lanes or mine.touched & ~lanes:
            clock = self._release(agent, lanes, True)
            clock[:, agent] = 0  # the warp's own accesses are ordered anyhow
            self.acquire(agent, clock, lanes)
            return
        if mine.apart:
            self._clocks[agent] = self.latest(agent)
            mine.apart.clear()
        if mine.touched:
            mine.met = mine.time
            self.tick(agent)
            if not mine.partly:  # then whoever knows of one of these times knows of all
                for time in mine.since:
                    del self._accessed[agent, time]
            mine.touched, mine.since, mine.partly = 0, [], False
        self.loose.discard(agent)

    def init(self, agent: int, lanes: int) -> tuple[int, int]:
        """A lane initialises an mbarrier: who did, and when."""
        mine = self._lanes[agent]
        who = self.agent(("inits", agent), f"mbarrier.init of {self.names[agent]}")
        mine.inits += 1
        self.observe(agent, who, mine.inits, lanes)
        self.loose.add(agent)
        return who, mine.inits

    # Fences.

    def fence(self, agent: int, lanes: int) -> None:
        """What a later relaxed arrival publishes (PTX ISA, fence: release pattern)."""
        np.maximum(self._fenced[agent], self.release(agent, lanes), out=self._fenced[agent])

    def init_fence(self, agent: int, lanes: int) -> None:
        """The same of what these lanes know of mbarrier.init, and of nothing else."""
        who = self._numbers.get(("inits", agent))
        if who is not None:
            self._fenced[agent, :, who] = self.seen(agent, lanes)[:, who]

    def fenced(self, agent: int) -> Clock:
        found: Clock = self._fenced[agent]
        return found

    def wrote(self, agent: int, lanes: int, *, remote: bool) -> None:
        """Lanes of the warp wrote shared memory, their CTA's or another's, through the generic proxy."""
        self._lanes[agent].unfenced[remote] |= lanes

    def proxy_fence(self, agent: int, lanes: int, *, remote: bool) -> None:
        """The writes of these lanes to their CTA's shared memory (`remote`: or another's) become visible to the
        async proxy: the warp's, once no lane is left that wrote and did not fence."""
        mine = self._lanes[agent]
        for k in range(1 + remote):
            mine.unfenced[k] &= ~lanes
            if not mine.unfenced[k]:
                for clock in (self._clocks[agent], *mine.apart.values()):
                    clock[FENCED + k, agent] = mine.time
        self.tick(agent)

    def arrive(self, agent: int, lanes: int) -> None:
        """What these lanes are ordered after in global memory, they are through the async proxy too."""
        for lane in each(lanes & self._lanes[agent].alive):
            self.proxied[agent, lane] = self.seen(agent, 1 << lane)[ORDERED].copy()

    def arrived(self, agent: int, lane: int) -> Any:
        """What that is: a row of a clock."""
        found = self.proxied.get((agent, lane))
        return self.empty()[ORDERED] if found is None else found

    # Lanes.

    def _views(self, agent: int, lanes: int, mine: Lanes) -> Iterator[Clock]:
        """The clocks of these lanes."""
        every = 0
        for lane, clock in mine.apart.items():
            if lanes >> lane & 1:
                every |= 1 << lane
                yield clock
        if lanes & mine.alive & ~every or not every:
            yield self._clocks[agent]

    def _written(self, agent: int, lanes: int) -> Iterable[Clock]:
        """The same, each lane with one of its own unless all of the warp are meant."""
        mine = self._lanes[agent]
        if not mine.alive & ~lanes:
            return (self._clocks[agent], *mine.apart.values())
        self.loose.add(agent)
        for lane in each(lanes & mine.alive):
            if lane not in mine.apart:
                mine.apart[lane] = self._clocks[agent].copy()
        return [mine.apart[lane] for lane in each(lanes & mine.alive)]

    def tick(self, agent: int) -> None:
        """What the warp does from here on is later."""
        mine = self._lanes[agent]
        if mine.now:
            self._accessed[agent, mine.time] = mine.now
            mine.since.append(mine.time)
            mine.now = 0
        mine.time += 1
