"""One schedule of a program, round-robin, every copy landing as soon as it is issued.

If this one completes, and the other checks hold, all do: no agent ever takes a decision, waits are
monotone in the phases, and parities are shown not to alias. What it records is what those checks
work on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import ops
from .contents import fetch, stale
from .finding import Finding, Place, bar_text, when
from .history import UNWRITTEN, Access, Counter, Run, Tally
from .ops import Bar, Program
from .properties import (
    BYTES,
    DEADLOCK,
    INIT,
    PHASE,
)
from .rendezvous import RENDEZVOUS

TX_LIMIT = (1 << 20) - 1  # PTX ISA, mbarrier tx-count


def run(program: Program) -> Run:
    """Run to the end or to the first thing that is wrong, which is then in `found`."""
    r = Run(program=program, done=[0] * len(program.agents))
    r.content = [UNWRITTEN] * len(program.cells)
    moved = True
    while moved and not r.found:
        moved = False
        for agent, todo in enumerate(program.ops):
            start = r.done[agent]
            while r.done[agent] < len(todo) and not r.found:
                op = todo[r.done[agent]]
                meaning = MEANING.get(type(op))
                if meaning and not meaning(r, agent, op):
                    break
                r.done[agent] += 1
            moved = moved or r.done[agent] > start
    if not r.found:
        r.found.extend(_ending(r))
    return r


def _ending(r: Run) -> list[Finding]:
    """What is wrong with where the schedule stopped: first the bytes, for they explain the rest."""
    stopped = tuple(r.done)
    for c in r.counters:
        if c.tx and (c.pending == 0 or not _stuck(r)):
            text = f"{_bar(r, c)} phase {c.phase}: {_difference(c.tx)} than were announced"
            return [Finding(property=BYTES, message=text, stopped=stopped, places=_last(c))]
    if stuck := _stuck(r):
        waiting = "; ".join(_blocked(r, a) for a in stuck)
        places = tuple((a, r.done[a]) for a in stuck)
        message = f"nobody can go on: {waiting}"
        return [Finding(property=DEADLOCK, message=message, stopped=stopped, places=places)]
    return []


def _difference(tx: int) -> str:
    return f"{abs(tx)} bytes {'fewer' if tx > 0 else 'more'} land"


def _stuck(r: Run) -> list[int]:
    return [a for a, todo in enumerate(r.program.ops) if r.done[a] < len(todo)]


def _blocked(r: Run, agent: int) -> str:
    op = r.program.ops[agent][r.done[agent]]
    where = f" ({when(op)})" if when(op) else ""
    match op:
        case ops.Wait():
            what = f"phase {op.phase} of {bar_text(op.bar, r.program.kernel.cluster.size > 1)}"
        case ops.Sync() | ops.Meet():
            what = f"the others at {op.name[0]} {op.name[2]}"
        case _:
            what = type(op).__name__
    return f"{r.program.agents[agent]} waits for {what}{where}"


def _last(c: Counter) -> tuple[Place, ...]:
    """The last announcement and the last landing."""
    return tuple((a, at) for a, at, _ in (*c.placed[-1:], *c.landed[-1:]))


def _bar(r: Run, c: Counter) -> str:
    return bar_text(c.name, r.program.kernel.cluster.size > 1)


# ---- the meaning of the operations that others can see: True when done, False while blocked --------


def _init(r: Run, agent: int, op: ops.Init) -> bool:
    at = (agent, r.done[agent])
    if op.bar in r.index:
        first = r.counters[r.index[op.bar]].made
        text = f"{op.bar[0]}[{op.bar[2]}] is initialised twice"
        return r.fail(Finding(property=INIT, message=text, places=(*[first or at], at)))
    if not 0 < op.count <= TX_LIMIT:
        text = f"{op.bar[0]} is initialised with {op.count} arrivals"
        return r.fail(Finding(property=INIT, message=text, places=(at,)))
    r.index[op.bar] = len(r.counters)
    r.counters.append(Counter(name=op.bar, total=op.count, pending=op.count, made=at))
    return True


def _fence(r: Run, agent: int, op: ops.InitFence) -> bool:
    r.fences.setdefault(agent, []).append(r.done[agent])
    return True


def _unmade(r: Run, agent: int, bar: Bar) -> bool:
    text = f"{bar_text(bar, r.program.kernel.cluster.size > 1)} is used before it is initialised"
    return r.fail(Finding(property=INIT, message=text, places=((agent, r.done[agent]),)))


def _wait(r: Run, agent: int, op: ops.Wait) -> bool:
    if not r.there(op.bar):
        return _unmade(r, agent, op.bar)
    c = r.counters[r.index[op.bar]]
    if c.phase <= op.phase:
        return False
    at = r.done[agent]
    c.waits.append((agent, at, op.phase))
    if op.phase >= 0:
        r.acquires.append((agent, at, c.phases[op.phase]))
    return True


def _number(r: Run, agent: int, op: ops.Number) -> bool:
    if not r.there(op.bar):
        return _unmade(r, agent, op.bar)
    r.counters[r.index[op.bar]].numbered.append((agent, r.done[agent]))
    return True


def _arrive(r: Run, agent: int, op: ops.Arrive) -> bool:
    for bar in op.bars:
        if not r.there(bar):
            return _unmade(r, agent, bar)
        index = r.index[bar]
        c = r.counters[index]
        at = r.done[agent]
        c.arrivals.setdefault(agent, Tally()).add(at, op.count)
        c.tx += op.expect
        c.announced += op.expect
        if not _count(r, index, op.count, (agent, at)):
            return False
        if op.expect and c.announced - (c.bytes_by[-1] if c.bytes_by else 0) > TX_LIMIT:
            text = f"{_bar(r, c)}: {op.expect} bytes are more than a phase can count"
            return r.fail(Finding(property=BYTES, message=text, places=((agent, at),)))
    return True


def _count(r: Run, index: int, arrivals: int, place: Place) -> bool:
    """Warps arrive one by one: some of them may complete a phase, and the rest begin the next."""
    c = r.counters[index]
    while arrivals:
        taken = min(arrivals, c.pending)
        if not taken:
            text = f"{_bar(r, c)} phase {c.phase}: more than {c.total} arrivals"
            return r.fail(Finding(property=PHASE, message=text, places=(place,)))
        c.placed.append((*place, c.phase))
        c.pending -= taken
        arrivals -= taken
        r.complete(index)
    return True


def _load(r: Run, agent: int, op: ops.Load) -> bool:
    at = r.done[agent]
    for copy in op.copies:
        if copy.bar not in r.index:
            return _unmade(r, agent, copy.bar)
        index = r.index[copy.bar]
        c = r.counters[index]
        tally = c.landings.setdefault(agent, Tally())
        tally.add(at, copy.size)
        c.landed.append((agent, at, c.phase))
        r.accesses.append(
            Access(
                agent=agent,
                at=at,
                cells=copy.cells,
                writes=True,
                generic=False,
                copy=(index, c.phase),
            )
        )
        for cell in copy.cells:
            r.content[cell] = op.tile, op.k
        if op.source:
            fetch(r, (agent, at), op.source, (index, c.phase))
        c.tx -= copy.size
        r.complete(index)
    return True


def _access(*, writes: bool, generic: bool, begun: bool = False) -> Callable[[Run, int, Any], bool]:
    """An operation that touches `cells` at once (or until its group is waited for)."""

    def touch(r: Run, agent: int, op: Any) -> bool:
        at = r.done[agent]
        r.accesses.append(
            Access(agent=agent, at=at, cells=op.cells, writes=writes, generic=generic, begun=begun)
        )
        mine = op.tile, op.k
        for cell in op.cells:
            if writes:
                r.content[cell] = mine
            elif r.content[cell] != mine and not r.stale:
                r.stale.append(stale(r, (agent, at), cell))
        return True

    return touch


MEANING: dict[type[ops.Op], Callable[[Run, int, Any], bool]] = {
    ops.Init: _init,
    ops.InitFence: _fence,
    **RENDEZVOUS,
    ops.Wait: _wait,
    ops.Arrive: _arrive,
    ops.Number: _number,
    ops.Load: _load,
    ops.Read: _access(writes=False, generic=True),
    ops.Rows: _access(writes=False, generic=True),
    ops.Tail: _access(writes=False, generic=True),
    ops.Write: _access(writes=True, generic=True),
    ops.Begin: _access(writes=True, generic=True, begun=True),
    ops.Multiply: _access(writes=False, generic=False),
    ops.Store: _access(writes=False, generic=False),
}
