"""Where threads meet: each waits for all, at once or later. Its arrivals, and who waited for them: see canonical.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import ops
from .finding import Finding
from .history import Counter, Run, Tally
from .ops import Bar
from .properties import NAMED_BARRIER

NAMED_BARRIERS = range(1, 16)  # PTX ISA, bar: 16 of them, and 0 is __syncthreads


def _sync(r: Run, agent: int, op: ops.Sync) -> bool:
    """The last to come completes the phase, and lets all go on."""
    index = _rendezvous(r, op.name, op.total)
    c = r.counters[index]
    at = r.done[agent]
    if (agent, at) in c.inside:
        return False
    if (op.total or c.total) != c.total:
        text = f"{op.name[0]} {op.name[2]} is joined for {op.total} threads and for {c.total}"
        places = (*c.inside, (agent, at))
        return r.fail(Finding(property=NAMED_BARRIER, message=text, places=places))
    c.inside.append((agent, at))
    c.arrivals.setdefault(agent, Tally()).add(at, op.threads)
    c.placed.append((agent, at, c.phase))
    c.pending -= op.threads
    if c.pending > 0:
        return False
    if c.pending < 0:
        text = f"{op.name[0]} {op.name[2]} is joined by more than {c.total} threads"
        return r.fail(Finding(property=NAMED_BARRIER, message=text, places=tuple(c.inside)))
    for member, place in c.inside:
        c.waits.append((member, place, c.phase))
        r.acquires.append((member, place, len(r.phases)))
        r.done[member] += member != agent
    c.inside = []
    r.complete(index)
    return True


def _enter(r: Run, agent: int, op: ops.Enter) -> bool:
    index = _rendezvous(r, op.name)
    c = r.counters[index]
    at = r.done[agent]
    if agent in c.arrivals:
        text = f"{op.name[0]} {op.name[2]} is entered twice"
        return r.fail(Finding(property=NAMED_BARRIER, message=text, places=((agent, at),)))
    c.arrivals.setdefault(agent, Tally()).add(at, op.threads)
    c.placed.append((agent, at, c.phase))
    c.pending -= op.threads
    r.complete(index)
    return True


def _meet(r: Run, agent: int, op: ops.Meet) -> bool:
    """Who has not entered would never be missed."""
    c = r.counters[_rendezvous(r, op.name)]
    at = r.done[agent]
    if agent not in c.arrivals:
        text = f"{op.name[0]} {op.name[2]} is awaited by one who did not enter it"
        return r.fail(Finding(property=NAMED_BARRIER, message=text, places=((agent, at),)))
    if not c.phase:
        return False
    c.waits.append((agent, at, 0))
    r.acquires.append((agent, at, c.phases[0]))
    return True


def _rendezvous(r: Run, name: Bar, threads: int | None = None) -> int:
    if name not in r.index:
        kind, cta, number = name
        if kind == "named barrier" and number not in NAMED_BARRIERS:
            text = f"named barrier {number} is not one of 1 to 15"
            r.found.append(Finding(property=NAMED_BARRIER, message=text))
        size = r.program.kernel.cluster.size if kind == "cluster" else 1
        scope = [a for a in r.program.agents if a.cta // size == cta // size]
        total = threads or sum(a.threads for a in scope)
        r.index[name] = len(r.counters)
        r.counters.append(Counter(name=name, total=total, pending=total, synchronises=True))
    return r.index[name]


RENDEZVOUS: dict[type[ops.Op], Callable[[Run, int, Any], bool]] = {
    ops.Sync: _sync,
    ops.Enter: _enter,
    ops.Meet: _meet,
}
