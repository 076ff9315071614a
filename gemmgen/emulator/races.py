"""Happens-before by vector clocks, over warps and the asynchronous engines.

Agents are the warps of a cluster, and one per stream of asynchronous operations: the loads that
complete on one mbarrier (time = phase), the wgmma groups of a warpgroup, the bulk stores of a thread
(time = group), their reads of shared memory apart from their writes. An operation starts with what its
issuer has seen; others are ordered after it once they have waited for its completion.

Each warp carries two clocks: what is ordered before it, and what of that is also visible to the async
proxy, which takes the writer's own fence.proxy.async (PTX ISA, "Proxies").
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import Race

Clock = npt.NDArray[np.int64]  # [2, agents]: ordered, ordered and proxy-fenced

WORD = 4  # bytes: accesses are tracked at this granularity
AGENTS_PER_CTA = 192


class Tracker:
    """The agents of one cluster and the clocks of its warps."""

    def __init__(self, ctas: int, warps: int) -> None:
        self.warps = warps
        self.names = [
            "nobody",
            *(f"warp {w} of CTA {c}" for c in range(ctas) for w in range(warps)),
        ]
        self.capacity = len(self.names) + AGENTS_PER_CTA * ctas
        self._numbers: dict[object, int] = {}
        self._clocks = np.zeros((len(self.names), 2, self.capacity), np.int64)
        self._unfenced = [0] * len(self.names)  # lanes that wrote since their fence.proxy.async
        self._fenced = np.zeros_like(self._clocks)
        for agent in range(1, len(self.names)):
            self._clocks[agent, 0, agent] = 1

    def warp(self, rank: int, warp: int) -> int:
        """The agent of a warp of the CTA of rank `rank`."""
        return 1 + rank * self.warps + warp

    def agent(self, key: object, name: str) -> int:
        """The agent of a stream of asynchronous operations."""
        if key not in self._numbers:
            self._numbers[key] = len(self.names)
            self.names.append(name)
            if len(self.names) > self.capacity:
                raise Race(f"more than {self.capacity} agents in a cluster are not tracked")
        return self._numbers[key]

    def clocks(self, first: int, warps: int, cta: Any) -> Any:
        """[warps, 2, agents]: the clocks of adjacent warps, a view."""
        agent = self.warp(cta.rank, first)
        return self._clocks[agent : agent + warps]

    def clock(self, agent: int) -> Clock:
        found: Clock = self._clocks[agent]
        return found

    def empty(self) -> Clock:
        return np.zeros((2, self.capacity), np.int64)

    def time(self, agent: int) -> int:
        return int(self._clocks[agent, 0, agent])

    def release(self, agent: int) -> Clock:
        """What the warp publishes now; what it does from here on is later."""
        published: Clock = self._clocks[agent].copy()
        self._clocks[agent, 0, agent] += 1
        return published

    def acquire(self, agent: int, clock: Clock) -> None:
        np.maximum(self._clocks[agent], clock, out=self._clocks[agent])

    def observe(self, agent: int, other: int, time: int) -> None:
        """The warp has waited for `other` up to `time`; async writes need no proxy fence."""
        mine = self._clocks[agent]
        mine[:, other] = np.maximum(mine[:, other], time)

    def fence(self, agent: int) -> None:
        """What a later relaxed arrival publishes (PTX ISA, fence: release pattern)."""
        self._fenced[agent] = self._clocks[agent]
        self._clocks[agent, 0, agent] += 1

    def fenced(self, agent: int) -> Clock:
        found: Clock = self._fenced[agent]
        return found

    def wrote(self, agent: int, lanes: int) -> None:
        """Lanes of the warp (a mask) wrote shared memory through the generic proxy."""
        self._unfenced[agent] |= lanes

    def proxy_fence(self, agent: int, lanes: int) -> None:
        """The writes of these lanes (a mask) become visible to the async proxy: the warp's, once no
        lane is left that wrote and did not fence."""
        self._unfenced[agent] &= ~lanes
        if self._unfenced[agent]:
            return
        mine = self._clocks[agent]
        mine[1, agent] = mine[0, agent]
        mine[0, agent] += 1


class Shadow:
    """Per word of one CTA's shared memory: who wrote it last, and who has read it since."""

    def __init__(self, size: int, tracker: Tracker, cta: int) -> None:
        words = -(-size // WORD)
        self.tracker, self.cta = tracker, cta
        self.agent = np.zeros(words, np.int32)
        self.time = np.zeros(words, np.int64)
        self.generic = np.zeros(words, np.bool_)
        self.instruction = np.zeros(words, np.int32)
        self.rows: dict[int, int] = {}  # reading agent -> row
        self.readers = np.zeros(0, np.int64)
        self.reads = np.zeros((0, words), np.int64)
        self.read_by = np.zeros((0, words), np.int32)
        self.texts: list[str] = [""]
        self._numbers: dict[str, int] = {}

    def read(self, words: Any, agent: int, time: int, seen: Clock, what: str, proxy: bool) -> None:
        """Raises Race if a write is not ordered before (or not fenced for the async proxy)."""
        self._check_writes(words, seen, what, "read", proxy)
        row = self._row(agent)
        self.reads[row, words] = time
        self.read_by[row, words] = self._number(what)

    def write(self, words: Any, agent: int, time: int, seen: Clock, what: str, proxy: bool) -> None:
        """Raises Race if a write or a read is not ordered before."""
        self._check_writes(words, seen, what, "written", proxy)
        self._check_reads(words, seen, what)
        self.agent[words], self.time[words] = agent, time
        self.generic[words] = not proxy
        self.instruction[words] = self._number(what)

    def _check_writes(self, words: Any, seen: Clock, what: str, how: str, proxy: bool) -> None:
        agents, times = self.agent[words], self.time[words]
        late = times > seen[0, agents]
        if late.any():
            self._race(
                words, late, f"{how} by {what}, not ordered after the write by", self.instruction
            )
        if proxy:
            late = self.generic[words] & (times > seen[1, agents])
            if late.any():
                text = (
                    f"{how} by {what} through the async proxy, without a fence.proxy.async by the "
                    "writer between its write and the synchronisation: the write by"
                )
                self._race(words, late, text, self.instruction)

    def _check_reads(self, words: Any, seen: Clock, what: str) -> None:
        late = self.reads[:, words] > seen[0, self.readers][:, None]
        if late.any():
            row = int(np.flatnonzero(late.any(1))[0])
            text = f"written by {what}, not ordered after the read by"
            self._race(words, late[row], text, self.read_by[row])

    def _race(self, words: Any, late: Any, text: str, instructions: Any) -> None:
        all_words = np.arange(self.agent.size)[words][late]
        first, last = int(all_words[0]) * WORD, int(all_words[-1]) * WORD + WORD - 1
        other = self.texts[instructions[all_words[0]]]
        raise Race(f"shared memory {first:#x}..{last:#x} of CTA {self.cta} is {text} {other}")

    def _row(self, agent: int) -> int:
        if agent not in self.rows:
            self.rows[agent] = len(self.rows)
            self.readers = np.append(self.readers, agent)
            blank = np.zeros((1, self.agent.size), np.int64)
            self.reads = np.concatenate([self.reads, blank])
            self.read_by = np.concatenate([self.read_by, blank.astype(np.int32)])
        return self.rows[agent]

    def _number(self, what: str) -> int:
        if what not in self._numbers:
            self._numbers[what] = len(self.texts)
            self.texts.append(what)
        return self._numbers[what]
