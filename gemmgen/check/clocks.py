"""Vector clocks: how far each agent surely was when an operation starts.

A wait acquires what the arrivals that completed its phase had released. Which arrivals those were
may depend on the schedule: `extra` more are eligible (not after the phase) than it takes. Any of
them may be the ones that were late, so of each agent's progress only the (extra + 1)-th largest
value among them is sure. Without extra arrivals this is the ordinary join.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from .after import After
from .history import Run, Tally

Clock = list[int]  # by agent: how many of its operations are done


@dataclass(kw_only=True)
class Clocks:
    """What each agent knows after each of its acquiring waits; between them nothing changes."""

    run: Run
    after: After
    at: list[list[int]] = field(default_factory=list)  # positions of the waits, by agent
    known: list[list[Clock]] = field(default_factory=list)
    of_phase: dict[int, Clock] = field(default_factory=dict)
    most_extra: int = 0
    rounds: int = 0

    def before(self, agent: int, at: int) -> Clock:
        """What `agent` knows of the others when its operation `at` starts."""
        return self.known[agent][bisect_left(self.at[agent], at)]

    def ordered(self, one: tuple[int, int], other: tuple[int, int]) -> bool:
        """The first operation is over, in every schedule, when the second starts."""
        (i, p), (j, r) = one, other
        return p < r if i == j else self.before(j, r)[i] > p

    def phase(self, counter: int, n: int) -> Clock | None:
        """What is done, in every schedule, when this phase completes; None if it never does."""
        phases = self.run.counters[counter].phases
        if n >= len(phases):
            return None
        if phases[n] not in self.of_phase:
            self.of_phase[phases[n]] = self.acquired(counter, n)
        return self.of_phase[phases[n]]

    def acquired(self, counter: int, n: int) -> Clock:
        """The join over the arrivals, and over the issues of the bytes, that complete a phase."""
        c = self.run.counters[counter]
        limits = self.after.first[c.phases[n]]
        known = self._join(c.arrivals, limits, (n + 1) * c.total)
        if c.landings:
            known = list(map(max, known, self._join(c.landings, limits, c.bytes_by[n])))
        return known

    def _join(self, tallies: dict[int, Tally], limits: list[int], needed: int) -> Clock:
        eligible = sum(t.sums[bisect_left(t.at, limits[agent])] for agent, t in tallies.items())
        extra = eligible - needed
        assert extra >= 0, "a phase completes before what completes it"
        self.most_extra = max(self.most_extra, extra)
        rows = [row for agent, t in tallies.items() for row in self._last(agent, t, limits, extra)]
        if not rows:
            return [0] * len(limits)
        if not extra:
            return [max(column) for column in zip(*(clock for _, clock in rows), strict=True)]
        return [_surely(rows, a, extra) for a in range(len(limits))]

    def _last(
        self, agent: int, t: Tally, limits: list[int], extra: int
    ) -> Iterator[tuple[int, Clock]]:
        """The agent's last eligible arrivals that weigh more than `extra`: earlier ones know less."""
        i = bisect_left(t.at, limits[agent])
        weight = 0
        while i > 0 and weight <= extra:
            i -= 1
            clock = self.before(agent, t.at[i])[:]
            clock[agent] = t.at[i] + 1
            yield t.sums[i + 1] - t.sums[i], clock
            weight += t.sums[i + 1] - t.sums[i]


def _surely(rows: list[tuple[int, Clock]], agent: int, extra: int) -> int:
    """The (extra + 1)-th largest of the rows' values, each counted by its weight."""
    for value, weight in sorted(((clock[agent], w) for w, clock in rows), reverse=True):
        extra -= weight
        if extra < 0:
            return value
    return 0


def clocks(r: Run, after: After) -> Clocks:
    """Iterate to the least fixpoint. Where no phase has extra arrivals, the first round is it."""
    c = Clocks(run=r, after=after)
    nothing = [0] * len(r.program.agents)
    c.at = [[] for _ in r.program.agents]
    for agent, at, _ in r.acquires:
        c.at[agent].append(at)
    c.known = [[nothing] * (len(at) + 1) for at in c.at]
    changed = True
    while changed:
        changed = _round(c, r) and c.most_extra > 0
        c.rounds += 1
    return c


def _round(c: Clocks, r: Run) -> bool:
    changed = False
    c.of_phase.clear()
    for agent, at, p in r.acquires:
        counter, n = r.phases[p]
        gained = c.phase(counter, n)
        assert gained is not None
        i = bisect_right(c.at[agent], at)
        new = list(map(max, gained, c.known[agent][i - 1]))
        if new != c.known[agent][i]:
            c.known[agent][i] = new
            changed = True
    return changed
