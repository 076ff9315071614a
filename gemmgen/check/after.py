"""After(phase): per agent, the first operation that can only run once the phase has completed.

The least fixpoint of two rules. What follows a wait on the phase, or on a later phase of the same
counter, is after it. And a phase B is after phase A if, without what is after A (and without what
is after B itself), too few arrivals or too few bytes remain to complete B: then what follows a
wait on B is after A as well. If B is after A it completes after A in every schedule, so in the
canonical one too: taking the phases from the last to the first, each needs only finished ones.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from .history import Counter, Run, Tally

NEVER = 1 << 60
Threshold = list[int]  # by agent


@dataclass(frozen=True, kw_only=True)
class After:
    """`first[p][a]` is the first operation of agent a after phase p (an index of Run.phases)."""

    first: list[Threshold]
    never: Threshold

    def of(self, phase: int | None) -> Threshold:
        """The threshold of a phase, or of one that never completed."""
        return self.never if phase is None else self.first[phase]


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """The counters, arranged for the fixpoint."""

    counters: list[Counter]
    arrivals: list[list[tuple[int, list[int], list[int]]]]  # agent, where, sums; by counter
    landings: list[list[tuple[int, list[int], list[int]]]]
    waiters: list[list[tuple[int, list[int]]]]  # agent, first op after waits on phase n or later
    fed_by: list[list[int]]  # counters, by agent that arrives or lands bytes there


def after(r: Run) -> After:
    """Solve for every phase of the canonical run."""
    tables = _tables(r)
    agents = len(r.program.agents)
    first: list[Threshold] = [[] for _ in r.phases]
    least: list[list[int]] = [[] for _ in r.phases]  # by counter: the least phase known to be after
    for p in range(len(r.phases) - 1, -1, -1):
        counter, n = r.phases[p]
        phases = tables.counters[counter].phases
        if n + 1 < len(phases):  # whatever is after the next phase is after this one
            later = phases[n + 1]
            first[p], least[p] = first[later][:], least[later][:]
        else:
            first[p] = [NEVER] * agents
            least[p] = [len(c.phases) for c in tables.counters]
        least[p][counter] = n + 1
        _close(tables, p, first, least[p], _lower(tables, first[p], counter, n))
    return After(first=first, never=[NEVER] * agents)


def _close(
    t: _Tables, p: int, first: list[Threshold], least: list[int], lowered: list[int]
) -> None:
    """Follow the second rule until no agent's threshold falls any more."""
    mine = first[p]
    while lowered:
        touched = sorted({c for agent in lowered for c in t.fed_by[agent]})
        lowered = []
        for c in touched:
            phases = t.counters[c].phases
            n = least[c]
            while n > 0 and phases[n - 1] > p and _starved(t, c, n - 1, mine, first[phases[n - 1]]):
                n -= 1
            if n < least[c]:
                least[c] = n
                lowered += _lower(t, mine, c, n)


def _starved(t: _Tables, counter: int, n: int, one: Threshold, other: Threshold) -> bool:
    """Too little for phase n of `counter` remains before both thresholds."""
    c = t.counters[counter]
    if _before(t.arrivals[counter], one, other) < (n + 1) * c.total:
        return True
    landings = t.landings[counter]
    return bool(landings) and _before(landings, one, other) < c.bytes_by[n]


def _before(
    tallies: list[tuple[int, list[int], list[int]]], one: Threshold, other: Threshold
) -> int:
    amount = 0
    for agent, at, sums in tallies:
        limit = one[agent]
        if other[agent] < limit:
            limit = other[agent]
        amount += sums[-1] if limit == NEVER else sums[bisect_left(at, limit)]
    return amount


def _lower(t: _Tables, mine: Threshold, counter: int, n: int) -> list[int]:
    """What follows waits on phase n (or later) is after: returns the agents that changes."""
    changed = []
    for agent, firsts in t.waiters[counter]:
        if n < len(firsts) and firsts[n] < mine[agent]:
            mine[agent] = firsts[n]
            changed.append(agent)
    return changed


def _tables(r: Run) -> _Tables:
    fed_by: list[list[int]] = [[] for _ in r.program.agents]
    for i, c in enumerate(r.counters):
        for agent in sorted({*c.arrivals, *c.landings}):
            fed_by[agent].append(i)
    return _Tables(
        counters=r.counters,
        arrivals=[_rows(c.arrivals) for c in r.counters],
        landings=[_rows(c.landings) for c in r.counters],
        waiters=[_waiters(c) for c in r.counters],
        fed_by=fed_by,
    )


def _rows(tallies: dict[int, Tally]) -> list[tuple[int, list[int], list[int]]]:
    return [(agent, t.at, t.sums) for agent, t in tallies.items()]


def _waiters(c: Counter) -> list[tuple[int, list[int]]]:
    """Per agent, by phase: the first operation that follows a wait on that phase or a later one."""
    firsts: dict[int, list[int]] = {}
    for agent, at, n in c.waits:
        if n >= 0:
            mine = firsts.setdefault(agent, [])
            mine.extend([NEVER] * (n + 1 - len(mine)))
            mine[n] = min(mine[n], at + 1)
    for mine in firsts.values():
        for n in range(len(mine) - 2, -1, -1):
            mine[n] = min(mine[n], mine[n + 1])
    return list(firsts.items())
