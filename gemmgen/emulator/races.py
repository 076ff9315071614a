"""Who has touched which word of shared memory, and races among them.

An access is later than another if what happened before it (tracker.py) covers that one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import Race
from .tracker import FENCED, FENCED_REMOTE, ORDERED, Clock, Tracker

WORD = 4  # bytes: accesses are tracked at this granularity


class Accesses:
    """Of each word by each agent, when it did so last, and by which instruction."""

    def __init__(self, words: int) -> None:
        self.words = words
        self.rows: dict[int, int] = {}  # agent -> row
        self.agents = np.zeros(0, np.int64)
        self.times = np.zeros((0, words), np.int64)
        self.instructions = np.zeros((0, words), np.int32)

    def note(self, words: Any, agent: int, time: int, instruction: int) -> None:
        row = self._row(agent)
        self.times[row, words] = time
        self.instructions[row, words] = instruction

    def _row(self, agent: int) -> int:
        if agent not in self.rows:
            self.rows[agent] = len(self.rows)
            self.agents = np.append(self.agents, agent)
            blank = np.zeros((1, self.words), np.int64)
            self.times = np.concatenate([self.times, blank])
            self.instructions = np.concatenate([self.instructions, blank.astype(np.int32)])
        return self.rows[agent]


class Shadow:
    """Per word of one CTA's shared memory: who wrote it last, and who has read it, or updated it at once, since. Updates need no order among themselves; whether the async
    proxy sees them is not asked."""

    def __init__(self, size: int, tracker: Tracker, cta: int) -> None:
        words = -(-size // WORD)
        self.tracker, self.cta, self.rank = tracker, cta, cta % tracker.ctas
        self.agent = np.zeros(words, np.int32)
        self.time = np.zeros(words, np.int64)
        self.generic = np.zeros(words, np.bool_)
        self.instruction = np.zeros(words, np.int32)
        self.reads, self.updates = Accesses(words), Accesses(words)
        self.texts: list[str] = [""]
        self._numbers: dict[str, int] = {}

    def read(self, words: Any, agent: int, time: int, seen: Clock, what: str, proxy: bool) -> None:
        """Raises Race if a write or an update is not ordered before (or a write not fenced for the async proxy)."""
        self._check_writes(words, seen, what, "read", proxy)
        self._check(self.updates, words, seen, f"read by {what}, not ordered after the update by")
        self.reads.note(words, agent, time, self._number(what))

    def write(self, words: Any, agent: int, time: int, seen: Clock, what: str, proxy: bool) -> None:
        """Raises Race if a write, an update or a read is not ordered before."""
        self._check_writes(words, seen, what, "written", proxy)
        self._check(self.reads, words, seen, f"written by {what}, not ordered after the read by")
        text = f"written by {what}, not ordered after the update by"
        self._check(self.updates, words, seen, text)
        self.agent[words], self.time[words] = agent, time
        self.generic[words] = not proxy
        self.instruction[words] = self._number(what)

    def update(self, words: Any, agent: int, time: int, seen: Clock, what: str) -> None:
        """Read and written at once. Raises Race if a write or a read is not ordered before."""
        self._check_writes(words, seen, what, "updated", False)
        self._check(self.reads, words, seen, f"updated by {what}, not ordered after the read by")
        self.updates.note(words, agent, time, self._number(what))

    def becomes(self, words: Any, agent: int, time: int, what: str) -> None:
        """Writes that were under way are this agent's: nobody has touched the words since they began."""
        self.agent[words], self.time[words] = agent, time
        self.instruction[words] = self._number(what)

    def _check_writes(self, words: Any, seen: Clock, what: str, how: str, proxy: bool) -> None:
        agents, times = self.agent[words], self.time[words]
        late = times > seen[ORDERED, agents]
        if late.any() and self._unseen(late, agents, times, seen[ORDERED]):
            self._race(
                words, late, f"{how} by {what}, not ordered after the write by", self.instruction
            )
        if proxy and (generic := self.generic[words]).any():
            self._check_fences(words, generic, seen, f"{how} by {what}")

    def _check_fences(self, words: Any, generic: Any, seen: Clock, what: str) -> None:
        """Of writes to this memory by its own CTA, and by others of the cluster."""
        agents, times = self.agent[words], self.time[words]
        remote = self.tracker.remote(agents, self.rank)
        for row, mine in ((FENCED, ~remote), (FENCED_REMOTE, remote)):
            late = generic & mine & (times > seen[row, agents])
            if late.any() and self._unseen(late, agents, times, seen[row]):
                place = "cluster" if row == FENCED_REMOTE else "cta"
                text = (
                    f"{what} through the async proxy, without a fence.proxy.async (of all state spaces or of "
                    f".shared::{place}) by the writer between its write and the synchronisation: the write by"
                )
                self._race(words, late, text, self.instruction)

    def _check(self, others: Accesses, words: Any, seen: Clock, text: str) -> None:
        late = others.times[:, words] > seen[ORDERED, others.agents][:, None]
        if not late.any():
            return
        for row in np.flatnonzero(late.any(1)):
            agents = np.full(late.shape[1], others.agents[row])
            if self._unseen(late[row], agents, others.times[row, words], seen[ORDERED]):
                self._race(words, late[row], text, others.instructions[row])

    def _unseen(self, late: Any, agents: Any, times: Any, seen: Any) -> bool:
        """What is left of `late` without accesses that each of their lanes has released by itself."""
        covered: dict[tuple[int, int], bool] = {}
        for at in np.flatnonzero(late):
            key = int(agents[at]), int(times[at])
            if key not in covered:
                covered[key] = self.tracker.covers(seen, *key)
            late[at] = not covered[key]
        return bool(late.any())

    def _race(self, words: Any, late: Any, text: str, instructions: Any) -> None:
        all_words = np.arange(self.agent.size)[words][late]
        first, last = int(all_words[0]) * WORD, int(all_words[-1]) * WORD + WORD - 1
        other = self.texts[instructions[all_words[0]]]
        raise Race(f"shared memory {first:#x}..{last:#x} of CTA {self.cta} is {text} {other}")

    def _number(self, what: str) -> int:
        if what not in self._numbers:
            self._numbers[what] = len(self.texts)
            self.texts.append(what)
        return self._numbers[what]
