"""A finding as a counter-example: the least each agent must have done, as lines a person can read."""

from __future__ import annotations

from dataclasses import replace

from . import ops
from .clocks import Clock, Clocks
from .errors import Lane, ProtocolViolation, Trace
from .finding import Finding, bar_text, when
from .ops import EPOCHS, LAUNCH, OUTSIDE, OWN, PACKED, SENT, Agent, Bar, Op, Program

SHOWN = 6  # steps of each agent


def violation(found: Finding, program: Program | None, clocks: Clocks | None) -> ProtocolViolation:
    """The error that reports `found`."""
    trace = Trace()
    if program:
        lanes = _lanes(found, program, _cut(found, program, clocks))
        total = sum(lane.skipped + len(lane.steps) for lane in lanes)
        trace = Trace(instance=str(program.instance), total=total, lanes=lanes)
    return ProtocolViolation(found.property, found.message, trace)


def _cut(found: Finding, program: Program, clocks: Clocks | None) -> Clock:
    """How far each agent is: only what must precede `places`, all of which but the last have begun."""
    if found.stopped is not None:
        return list(found.stopped)
    cut = [0] * len(program.agents)
    for i, (agent, at) in enumerate(found.places):
        known = clocks.before(agent, at)[:] if clocks else [0] * len(cut)
        known[agent] = at + (i + 1 < len(found.places))
        cut = list(map(max, cut, known))
    return cut


def _lanes(found: Finding, program: Program, cut: Clock) -> tuple[Lane, ...]:
    """Who is past the start, or in the clash; warps of a warpgroup that stand alike are one lane."""
    marked = {agent for agent, _ in found.places}
    alike: dict[tuple[object, ...], list[Agent]] = {}
    for i, agent in enumerate(program.agents):
        started = any(op.tile != OUTSIDE for op in program.ops[i][: cut[i]])
        if started or i in marked:
            lane = _lane(program, i, cut[i], i in marked)
            alike.setdefault((agent.cta, agent.role, agent.warpgroup, lane), []).append(agent)
    return tuple(_together(agents, key[3]) for key, agents in alike.items())


def _together(agents: list[Agent], lane: object) -> Lane:
    assert isinstance(lane, Lane)
    warps = tuple(sorted(warp for agent in agents for warp in agent.warps))
    return replace(lane, agent=str(replace(agents[0], warps=warps)))


def _lane(program: Program, agent: int, end: int, marked: bool) -> Lane:
    mine = program.ops[agent]
    first = max(0, end - SHOWN)
    return Lane(
        agent="",
        skipped=first,
        steps=tuple(describe(program, op) for op in mine[first:end]),
        stands=describe(program, mine[end]) if marked and end < len(mine) else "",
        marked=marked,
    )


def describe(program: Program, op: Op) -> str:
    """One operation on one line, with its statement, barrier, stage, parity, tile and K block."""
    text = f"{type(op.stmt).__name__:<16} {_what(op, program.kernel.cluster.size > 1)}".rstrip()
    place = when(op)
    return f"{text:<72} {place}".rstrip()


def _what(op: Op, of_cluster: bool) -> str:
    match op:
        case ops.Init():
            return f"{bar_text(op.bar, of_cluster)}, {op.count} arrivals"
        case ops.Wait():
            phase = f"phase {op.phase}" if op.phase >= 0 else "passes while fresh"
            if op.bar[0] in (EPOCHS, LAUNCH, OWN, PACKED, SENT):
                return f"{bar_text(op.bar, of_cluster)}, {phase}"
            return f"{bar_text(op.bar, of_cluster)}, parity {op.phase & 1} ({phase})"
        case ops.Number():
            return bar_text(op.bar, of_cluster)
        case ops.Arrive():
            return f"{_bars(op.bars, of_cluster)}" + (f", {op.expect} bytes" if op.expect else "")
        case ops.Load():
            smem = dict.fromkeys(str(getattr(copy.stmt, "smem", "")) for copy in op.copies)
            bars = tuple(dict.fromkeys(copy.bar for copy in op.copies))
            return f"{', '.join(smem)} -> {_bars(bars, of_cluster)}"
        case ops.Sync() | ops.Enter() | ops.Meet():
            number = f" {op.name[2]}" if op.name[0] == "named barrier" else ""
            return f"{op.name[0]}{number}"
        case (
            ops.InitFence()
            | ops.RegisterFence()
            | ops.ProxyFence()
            | ops.ArrivalFence()
            | ops.WarpSync()
        ):
            return str(getattr(op.stmt, "of", ""))
        case ops.Multiply():
            return f"{getattr(op.stmt, 'a', '')}, {getattr(op.stmt, 'b', '')} -> {op.dst}"
        case ops.Touch():
            return ", ".join(op.registers)
        case ops.Retire() | ops.StoreWait():
            return f"until {op.pending} groups are left"
        case ops.Store():
            return f"rows {op.rect[0]} on, columns {op.rect[2]} on"
        case ops.MapEdit():
            return f"{op.field} of {op.tensor_map}"
        case ops.MapPublish() | ops.MapAcquire():
            return f"{op.slot[0]} of group {op.slot[2]}"
        case ops.Read() | ops.Write():
            return str(getattr(op.stmt, "smem", ""))
    return ""


def _bars(bars: tuple[Bar, ...], of_cluster: bool) -> str:
    """`full[1] of CTA 0, 1`: the same barrier of several CTAs once."""
    texts = list(dict.fromkeys(bar_text(bar, False) for bar in bars))
    where = ", ".join(str(cta) for cta in dict.fromkeys(cta for _, cta, _ in bars))
    return ", ".join(texts) + (f" of CTA {where}" if of_cluster else "")
