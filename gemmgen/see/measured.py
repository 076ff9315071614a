"""A timeline from the stamps that a kernel left: the operations that the proof unrolls, at the times they had.

An operation that is stamped ends at its stamp; others take no time, so what they took counts to the next that is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ..check import ops
from ..check.noted import Noted
from ..check.ops import Program
from ..errors import VerificationError
from ..ir import nodes as ir
from ..ir.syncs import is_sync
from .latency import Latency
from .rings import Ring
from .timeline import Carried, Flight, Step, Timeline

Key = tuple[ops.Bar, int, int]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The first cluster of one launch. lost: of each agent, its first stamps that newer ones lie over.
    clock_hz: of the SMs, on average over the launch. starts, ends: nanoseconds from the first to the last CTA's."""

    timeline: Timeline
    lost: tuple[int, ...]
    clock_hz: float
    starts: int
    ends: int


def measured(program: Program, latency: Latency, rings: Sequence[Ring]) -> Measured:
    """Cycles count from the moment that the cluster's first role began. Raises VerificationError where stamps are not the
    program's."""
    own = [r for a in program.agents for r in rings if (r.cta, r.warpgroup) == (a.cta, a.warpgroup)]
    late = _late(program, own, clock_hz(rings))
    zero = {r.cta: min(x.opened for x in rings if x.cta == r.cta) - late[r.cta] for r in own}
    for agent, (ring, noted) in enumerate(zip(own, program.stamps, strict=True)):
        _agree(program, agent, ring, noted)
    steps = tuple(
        tuple(_steps(program.ops[agent], noted, ring, zero[ring.cta]))
        for agent, (ring, noted) in enumerate(zip(own, program.stamps, strict=True))
    )
    t = Timeline(program=program, latency=latency, steps=steps, flights=(), phases=())
    begun = {id(op) for op in _begun(program, own)}
    products = _groups(t, "product", ops.Commit, ops.Retire)
    copies = _groups(t, "copy", ops.Begin, ops.Come)
    flights = tuple(f for f in (*_landings(t), *copies, *products) if id(f.op) in begun)
    return Measured(
        timeline=replace(t, flights=flights),
        lost=tuple(r.lost for r in own),
        clock_hz=clock_hz(rings),
        starts=_spread([min(r.opened_ns for r in of) for of in _by_cta(rings)]),
        ends=_spread([max(r.closed_ns for r in of) for of in _by_cta(rings)]),
    )


def clock_hz(rings: Sequence[Ring]) -> float:
    """SM cycles per second: the median over all warpgroups. 0 if the launch was too short for the timer."""
    timed = [r for r in rings if r.closed_ns > r.opened_ns]
    return median([(r.closed - r.opened) * 1e9 / (r.closed_ns - r.opened_ns) for r in timed] or [0])


def _late(program: Program, own: Sequence[Ring], hz: float) -> dict[int, int]:
    """By CTA: the cycles by which its first role began after the cluster's first. None where they have just met, at the barrier with
    which a prologue ends; else by the nanoseconds, for every SM counts cycles of its own."""
    began = {r.cta: min(x.opened_ns for x in own if x.cta == r.cta) for r in own}
    apart = any(is_sync(s, "cluster_arrive") for s in program.kernel.prologue)
    return {cta: round((ns - min(began.values())) * hz / 1e9) * apart for cta, ns in began.items()}


def _by_cta(rings: Sequence[Ring]) -> list[list[Ring]]:
    return [[r for r in rings if r.cta == cta] for cta in sorted({r.cta for r in rings})]


def _spread(times: list[int]) -> int:
    return max(times) - min(times)


def _agree(program: Program, agent: int, ring: Ring, noted: tuple[Noted, ...]) -> None:
    """Raise VerificationError unless the stamps are those that the program writes, to the last."""
    who = program.agents[agent]
    if ring.count != len(noted):
        raise VerificationError(f"{who} wrote {ring.count} stamps, its program writes {len(noted)}")
    for number, (stamp, due) in enumerate(
        zip(ring.newest, noted[ring.lost :], strict=True), ring.lost
    ):
        got, wanted = (stamp.event, stamp.tile, stamp.k), (due.event, due.tile, due.k)
        if got != wanted:
            text = f"{who}: stamp {number} is (event, tile, K block) {got}, its program writes {wanted}"
            raise VerificationError(text)


def _steps(
    todo: tuple[ops.Op, ...], noted: tuple[Noted, ...], ring: Ring, zero: int
) -> Iterator[Step]:
    """Before the first stamp that is left nothing takes time."""
    ends = {n.done - 1: s.at - zero for n, s in zip(noted[ring.lost :], ring.newest, strict=True)}
    now = min(ends.values()) if ring.lost else ring.opened - zero
    for at, op in enumerate(todo):
        end = max(now, ends.get(at, now))
        yield Step(op=op, start=now, end=end)
        now = end


def _begun(program: Program, own: Sequence[Ring]) -> Iterator[ops.Op]:
    """The operations whose times are known: none before the first stamp that is left."""
    for todo, noted, ring in zip(program.ops, program.stamps, own, strict=True):
        yield from todo[noted[ring.lost].done - 1 if ring.lost else 0 :]


def _landings(t: Timeline) -> Iterator[Flight]:
    """From a load's issue until the first warpgroup saw its bytes: no later than that they were there."""
    seen: dict[Key, int] = {}
    for own in t.steps:
        for s in own:
            if isinstance(s.op, ops.Wait):
                key = s.op.bar, s.op.tile, s.op.k
                seen[key] = min(seen.get(key, s.end), s.end)
    for agent, own in enumerate(t.steps):
        for s in own:
            for bar in _filled(s.op):
                end = seen.get((bar, s.op.tile, s.op.k), s.end)
                if end > s.end:
                    yield Flight(
                        carried="landing",
                        agent=agent,
                        op=s.op,
                        cta=bar[1],
                        start=s.end,
                        end=end,
                        stage=bar[2],
                    )


def _filled(op: ops.Op) -> tuple[ops.Bar, ...]:
    """The barriers that a load's bytes complete on; partial sums are no load."""
    if not isinstance(op, ops.Load) or isinstance(op.stmt, ir.SendPartials):
        return ()
    return tuple(dict.fromkeys(c.bar for c in op.copies))


def _groups(
    t: Timeline, carried: Carried, begun: type[ops.Op], over: type[ops.Retire | ops.Come]
) -> Iterator[Flight]:
    """From where a group was issued until its warpgroup knew that it was done."""
    for agent, own in enumerate(t.steps):
        running: deque[Step] = deque()
        for s in own:
            if isinstance(s.op, begun):
                running.append(s)
            elif isinstance(s.op, over):
                while len(running) > s.op.pending:
                    issued = running.popleft()
                    yield Flight(
                        carried=carried,
                        agent=agent,
                        op=issued.op,
                        cta=t.agents[agent].cta,
                        start=issued.end,
                        end=max(issued.end, s.end),
                        stage=getattr(issued.op, "stage", 0),
                    )
