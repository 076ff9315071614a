"""Runs an unrolled kernel against a clock: each agent's operations in order, each as long as the latency says.

What an operation means is the proof's (`check/ops.py`). Barriers complete when their arrivals and bytes are
there; the tensor core, and the port that loads and stores of an SM share, serve who comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from heapq import heappop
from itertools import groupby

from ..check import ops
from ..check.ops import Bar, Copy, Program
from ..errors import IRError
from ..ir import nodes as ir
from ..ir.promotion import PROMOTION
from .latency import Latency
from .simulation import Barrier, Meaning, Simulation, Worker
from .timeline import Flight, Timeline

WHOLE = ((0, 1, 2, 3),)  # how a warpgroup is split: its warps' times are not told apart


def simulate(program: Program, latency: Latency) -> Timeline:
    """Raises IRError if some agent never ends; `gemmgen check` then says why."""
    workers = [Worker() for _ in program.agents]
    s = Simulation(program=program, latency=latency, meaning=MEANING, workers=workers)
    for agent in range(len(program.agents)):
        s.at(0, partial(s.go_on, agent))
    while s.events:
        now, _, happens = heappop(s.events)
        happens(now)
    for w, todo, who in zip(s.workers, program.ops, program.agents, strict=True):
        if w.at < len(todo):
            raise IRError(f"{who} never gets past {type(todo[w.at].stmt).__name__}")
    return Timeline(
        program=program,
        latency=latency,
        steps=tuple(tuple(w.steps) for w in s.workers),
        flights=tuple(s.flights),
        phases=tuple(s.phases),
    )


# ---- the meaning of the operations: when each is over, or None while it is blocked ------------------


def _init(s: Simulation, agent: int, op: ops.Init, now: int) -> int:
    s.barriers[op.bar] = Barrier(total=op.count, pending=op.count)
    return now


def _wait(s: Simulation, agent: int, op: ops.Wait, now: int) -> int | None:
    b = s.barriers[op.bar]
    if b.phase > op.phase:
        return now
    b.waiters.append(agent)
    return None


def _arrive(s: Simulation, agent: int, op: ops.Arrive, now: int) -> int:
    for bar in op.bars:
        if bar[1] == s.program.agents[agent].cta:
            s.arrive(bar, op.count, op.expect, now)
        else:
            s.at(now + s.latency.remote, partial(s.arrive, bar, op.count, op.expect))
    return now


def _sync(s: Simulation, agent: int, op: ops.Sync, now: int) -> int | None:
    """The last to come lets all go on."""
    w = s.workers[agent]
    if w.meets:
        return None
    inside = s.meetings.setdefault(op.name, [])
    inside.append(agent)
    w.meets = True
    agents = s.program.agents
    scope = [a for a in agents if op.name[0] == "cluster" or a.cta == op.name[1]]
    present = sum(agents[a].threads if op.total is None else op.threads for a in inside)
    if present < (op.total or sum(a.threads for a in scope)):
        return None
    for member in s.meetings.pop(op.name):
        s.workers[member].meets = False
        if member != agent:
            s.done(member, now)
            s.at(now, partial(s.go_on, member))
    return now


def _enter(s: Simulation, agent: int, op: ops.Enter, now: int) -> int:
    """The last to come lets those who wait go on."""
    s.entered.add(agent)
    if len(s.entered) == len(s.workers):
        for waiting in s.meetings.pop(op.name, []):
            s.at(now, partial(s.go_on, waiting))
    return now


def _meet(s: Simulation, agent: int, op: ops.Meet, now: int) -> int | None:
    if len(s.entered) == len(s.workers):
        return now
    s.meetings.setdefault(op.name, []).append(agent)
    return None


def _load(s: Simulation, agent: int, op: ops.Load, now: int) -> int:
    """Boxes follow each other through the port; a multicast box passes once and lands in every CTA."""
    flights: dict[Bar, int] = {}
    for copies, end in _through_port(s, agent, op, now):
        for copy in copies:
            s.at(end, partial(s.land, copy))
            flights[copy.bar] = end
    sends = isinstance(op.copies[0].stmt, ir.SendPartials)
    s.flights += [
        Flight(
            carried="send" if sends else "load",
            agent=agent,
            op=op,
            cta=cta,
            start=now,
            end=end,
            stage=stage,
        )
        for (_, cta, stage), end in flights.items()
    ]
    return now


def _through_port(
    s: Simulation, agent: int, op: ops.Load, now: int
) -> Iterator[tuple[list[Copy], int]]:
    """The copies of each box, and when their bytes count."""
    lat, passed, before = s.latency, 0, 0
    for _, same in groupby(op.copies, key=lambda copy: id(copy.stmt)):
        copies = list(same)
        first = copies[0]
        if isinstance(first.stmt, ir.SendPartials):
            cycles = round(first.size / lat.exchange_rate)
            yield copies, s.occupy("exchange", first.bar[1], now, cycles) + lat.exchange
            continue
        passed += first.size
        cycles = lat.load * passed // lat.load_bytes - before
        before += cycles
        yield copies, s.occupy("port", s.program.agents[agent].cta, now, cycles) + lat.flight


def _begin(s: Simulation, agent: int, op: ops.Begin, now: int) -> int:
    """What threads copy passes through the port as a box does."""
    assert isinstance(op.stmt, ir.CopyRows)
    cta, smem = s.program.agents[agent].cta, s.program.kernel.buffer(op.stmt.smem)
    cycles = s.latency.load * smem.stage_bytes // s.latency.load_bytes
    end = s.occupy("port", cta, now, cycles) + s.latency.flight
    s.workers[agent].copies.append(end)
    s.flights.append(
        Flight(carried="copy", agent=agent, op=op, cta=cta, start=now, end=end, stage=op.stage)
    )
    return now


def _come(s: Simulation, agent: int, op: ops.Come, now: int) -> int:
    groups = s.workers[agent].copies
    return max([now, *groups[: len(groups) - op.pending]])


def _multiply(s: Simulation, agent: int, op: ops.Multiply, now: int) -> int:
    cta, cycles = s.program.agents[agent].cta, s.latency.multiply
    end = s.occupy("tensor", cta, now, cycles)
    s.workers[agent].product = end
    s.flights.append(
        Flight(carried="multiply", agent=agent, op=op, cta=cta, start=end - cycles, end=end)
    )
    return now


def _commit(s: Simulation, agent: int, op: ops.Commit, now: int) -> int:
    s.workers[agent].products.append(s.workers[agent].product)
    return now


def _retire(s: Simulation, agent: int, op: ops.Retire, now: int) -> int:
    groups = s.workers[agent].products
    drain = s.latency.drain if op.pending == 0 and op.k != ops.OUTSIDE else 0
    over = groups[: len(groups) - op.pending][-1:]
    return max([now, *(end + drain for end in over)])


def _touch(s: Simulation, agent: int, op: ops.Touch, now: int) -> int:
    if isinstance(op.stmt, ir.Decode):
        return now + s.latency.decode
    return now + (s.latency.promote if isinstance(op.stmt, PROMOTION) else 0)


def _stage(s: Simulation, agent: int, op: ops.Write, now: int) -> int:
    match op.stmt:
        case ir.ShareAmax():  # four numbers of a row
            return now
        case ir.SendPartials(through="cta"):
            return now + s.latency.adding
    return now + s.latency.stage


def _store(s: Simulation, agent: int, op: ops.Store, now: int) -> int:
    cta, cycles = s.program.agents[agent].cta, _store_cycles(s, op.rect)
    end = s.occupy("port", cta, now, cycles)
    s.workers[agent].store = end, end + s.latency.flight
    s.flights.append(
        Flight(carried="store", agent=agent, op=op, cta=cta, start=end - cycles, end=end)
    )
    return now


def _rows(s: Simulation, agent: int, op: ops.Rows, now: int) -> int:
    """The threads copy them themselves, from registers once they have the values."""
    now += s.latency.stage * (isinstance(op.stmt, ir.StoreValues) and bool(op.stmt.src))
    return s.occupy("port", s.program.agents[agent].cta, now, _store_cycles(s, op.rect))


def _store_cycles(s: Simulation, rect: ops.Rect) -> int:
    row, end_row, column, end_column = rect
    elements = (end_row - row) * (end_column - column)
    return s.latency.store * elements // s.latency.d_elements


def _store_commit(s: Simulation, agent: int, op: ops.StoreCommit, now: int) -> int:
    s.workers[agent].stores.append(s.workers[agent].store)
    return now


def _store_wait(s: Simulation, agent: int, op: ops.StoreWait, now: int) -> int:
    reads = getattr(op.stmt, "reads", False)
    groups = s.workers[agent].stores[: -op.pending or None]
    return max([now, *(read if reads else done for read, done in groups[-1:])])


MEANING: Meaning = {
    ops.Init: _init,
    ops.Wait: _wait,
    ops.Arrive: _arrive,
    ops.Sync: _sync,
    ops.Enter: _enter,
    ops.Meet: _meet,
    ops.Load: _load,
    ops.Begin: _begin,
    ops.Come: _come,
    ops.Multiply: _multiply,
    ops.Commit: _commit,
    ops.Retire: _retire,
    ops.Touch: _touch,
    ops.Write: _stage,
    ops.Store: _store,
    ops.Rows: _rows,
    ops.StoreCommit: _store_commit,
    ops.StoreWait: _store_wait,
}
