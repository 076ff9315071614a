"""mbarrier instructions, fences and mapa (PTX ISA, sections mbarrier, membar/fence, mapa)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import IllegalAccess, ProtocolError, UnsupportedInstruction
from .fiber import Wait
from .group import Group
from .lanes import (
    active_lanes,
    address_slot,
    agent_of,
    bit,
    lane_mask,
    locate,
    per_warp,
    space_of,
    value_of,
    who,
)
from .mbarrier import MBarrier
from .program import Handler, Op, Scope
from .races import WORD
from .spaces import OFFSET_MASK, RANK_SHIFT
from .syntax import Instruction, Sink

if TYPE_CHECKING:
    from .machine import Cta

BYTES = 8  # of an mbarrier object


def barrier_at(g: Group, space: str, address: int) -> tuple[Cta, MBarrier]:
    """The initialised barrier at an address. Raises IllegalAccess or ProtocolError."""
    cta, at = locate(g, space, address)
    if cta.exited:
        raise ProtocolError(f"{who(g)}: the barrier is in CTA {cta.index}, which has exited")
    found = cta.shared.barriers.get(at)
    if found is None:
        raise IllegalAccess(f"{who(g)}: no mbarrier was initialised at {at:#x} of CTA {cta.index}")
    return cta, found


def _init(i: Instruction, s: Scope) -> Op:
    space, address = space_of(i), address_slot(i.operands[0], s)
    count = value_of(i.operands[1], s)

    def op(g: Group) -> None:
        for lane in active_lanes(g):
            cta, at = locate(g, space, int(address(g)[lane]))
            _create(g, cta, at, count(g, lane), lane)

    return op


def _create(g: Group, cta: Cta, at: int, count: int, lane: int) -> None:
    agent, tracker = agent_of(g, lane), g.cta.cluster.tracker
    if at % BYTES:
        raise IllegalAccess(f"{who(g, lane)}: an mbarrier at {at:#x} is not 8-byte aligned")
    cta.shared.check(at, at + BYTES, who(g, lane))
    words = slice(at // WORD, (at + BYTES) // WORD)
    if at in cta.shared.barriers:
        raise ProtocolError(f"{who(g, lane)}: {cta.shared.barriers[at]} is initialised again")
    time, seen = tracker.touch(agent, bit(lane)), tracker.seen(agent, bit(lane))
    cta.shared.claim(words, agent, time, seen, who(g, lane), proxy=False)
    initialiser, born = tracker.init(agent, bit(lane))
    name = f"mbarrier {at:#x} of CTA {cta.index}"
    cta.shared.barriers[at] = MBarrier(
        name=name,
        count=count,
        tracker=tracker,
        agent=tracker.agent((cta.rank, "loads", at), f"loads that complete on {name}"),
        initialiser=initialiser,
        born=born,
        thread=int(g.first + lane),
    )
    cta.shared.barrier_words[words] = True


def _inval(i: Instruction, s: Scope) -> Op:
    space, address = space_of(i), address_slot(i.operands[0], s)

    def op(g: Group) -> None:
        for lane in active_lanes(g):
            cta, barrier = barrier_at(g, space, int(address(g)[lane]))
            at = next(a for a, b in cta.shared.barriers.items() if b is barrier)
            del cta.shared.barriers[at]
            cta.shared.barrier_words[at // WORD : (at + BYTES) // WORD] = False

    return op


def _arrive(i: Instruction, s: Scope) -> Op:
    """arrive and arrive.expect_tx; the count or byte operand comes last."""
    if "noComplete" in i.parts or "arrive_drop" in i.parts:
        raise UnsupportedInstruction(str(i))
    space, address = space_of(i), address_slot(i.operands[1], s)
    expect = "expect_tx" in i.parts
    operand = value_of(i.operands[2], s) if len(i.operands) > 2 else None
    state = None if isinstance(i.operands[0], Sink) else s.dst(i.operands[0], "b64")
    release = "relaxed" not in i.parts

    def op(g: Group) -> None:
        addresses, tracker = address(g), g.cta.cluster.tracker
        for agent, lanes in per_warp(g):
            clock = None
            together = _together(g, space, addresses[lanes], lanes, operand)
            for lane in lanes:
                value = operand(g, lane) if operand else 1
                cta, barrier = barrier_at(g, space, int(addresses[lane]))
                if state is not None:
                    g.R[state][lane] = barrier.phase
                if expect:
                    barrier.expect(value, who(g, lane))
                _check_arrival(g, agent, lane, cta, barrier)
                if release and (clock is None or not together):
                    mask = lane_mask(lanes) if together else bit(lane)
                    clock = tracker.release(agent, mask)
                    if cta is not g.cta and "cluster" not in i.parts:
                        tracker.loads.hold_back(clock, tracker, agent)
                barrier.arrive(clock, 1 if expect else value, who(g, lane))
            g.cta.launch.moved()

    return op


def _together(g: Group, space: str, addresses: Any, lanes: Any, count: Any) -> bool:
    """All of these lanes arrive in one phase of one barrier."""
    if lanes.size == 1 or (addresses != addresses[0]).any() or count:
        return False
    return barrier_at(g, space, int(addresses[0]))[1].pending >= int(lanes.size)


def _check_arrival(g: Group, agent: int, lane: int, cta: Cta, barrier: MBarrier) -> None:
    tracker = g.cta.cluster.tracker
    barrier.check_visible(tracker.seen(agent, bit(lane)), who(g, lane))
    if cta is not g.cta:
        barrier.check_fenced(who(g, lane))
        cta.touched(agent, tracker.time(agent), who(g, lane), bit(lane))


def _expect(i: Instruction, s: Scope) -> Op:
    space, address = space_of(i), address_slot(i.operands[0], s)
    count, sign = value_of(i.operands[1], s), 1 if "expect_tx" in i.parts else -1

    def op(g: Group) -> None:
        for lane in active_lanes(g):
            _, barrier = barrier_at(g, space, int(address(g)[lane]))
            if sign > 0:
                barrier.expect(count(g, lane), who(g, lane))
            else:
                barrier.complete(count(g, lane), barrier.phase, who(g, lane))

    return op


def _wait(i: Instruction, s: Scope) -> Op:
    """try_wait suspends the thread until the phase has completed, or for as long as the schedule likes: then
    the predicate is false. test_wait returns at once. Neither is ever wrong about the phase."""
    space, address = space_of(i), address_slot(i.operands[1], s)
    done = s.dst(i.operands[0], "pred")
    parity = "parity" in i.parts
    wanted = value_of(i.operands[2], s, "u32" if parity else "u64")
    blocking, acquire = "try_wait" in i.parts, "relaxed" not in i.parts
    of_cluster = "cluster" in i.parts  # the scope

    def op(g: Group) -> int | None:
        lanes, addresses = active_lanes(g), address(g)
        pairs = sorted({(int(addresses[x]), wanted(g, x)) for x in lanes})
        barriers = [barrier_at(g, space, a)[1] for a, _ in pairs]
        if len(pairs) == 1:
            passed = {pairs[0]: _passed(barriers[0], pairs[0][1], parity)}
            holds = g.active if passed[pairs[0]] else np.zeros(g.lanes, np.bool_)
        else:
            passed = {p: _passed(b, p[1], parity) for p, b in zip(pairs, barriers, strict=True)}
            holds = np.zeros(g.lanes, np.bool_)
            holds[lanes] = [passed[int(addresses[x]), wanted(g, x)] for x in lanes]
        if blocking and (g.active & ~holds).any():
            if holds.any():
                g.keep(holds, g.fiber.pc)
            elif not g.gives_up():
                return g.park(_waiting(barriers, pairs, parity))
        if blocking and g.gave_up:
            g.waited(holds)
        np.copyto(g.R[done], holds, where=g.where)
        for p, b in zip(pairs, barriers, strict=True):
            if passed[p]:
                _acquire(g, b, acquire, of_cluster, holds & (addresses == p[0]))
        return None

    return op


def _passed(barrier: MBarrier, wanted: int, parity: bool) -> bool:
    return barrier.passed(wanted) if parity else barrier.phase > wanted


def _acquire(g: Group, barrier: MBarrier, acquire: bool, of_cluster: bool, holds: Any) -> None:
    for agent, lanes in per_warp(g):
        mask = lane_mask(lanes[holds[lanes]])
        if acquire and mask:
            barrier.check_visible(g.cta.cluster.tracker.seen(agent, mask), who(g))
            barrier.acquire(agent, mask, of_cluster=of_cluster)


def _waiting(barriers: list[MBarrier], pairs: list[tuple[int, int]], parity: bool) -> Wait:
    def ready() -> bool:
        return any(_passed(b, p, parity) for b, (_, p) in zip(barriers, pairs, strict=True))

    def what() -> str:
        kind = "parity" if parity else "phase"
        return "; ".join(f"{kind} {p} of {b}" for b, (_, p) in zip(barriers, pairs, strict=True))

    return Wait(ready=ready, what=what, merge=True)


MBARRIER: Mapping[str, Handler] = {
    "init": _init,
    "inval": _inval,
    "arrive": _arrive,
    "expect_tx": _expect,
    "complete_tx": _expect,
    "try_wait": _wait,
    "test_wait": _wait,
}


def _mbarrier(i: Instruction, s: Scope) -> Op:
    if i.parts[1] not in MBARRIER:
        raise UnsupportedInstruction(str(i))
    return MBARRIER[i.parts[1]](i, s)


def _mapa(i: Instruction, s: Scope) -> Op:
    """The address of the same variable in another CTA of the cluster."""
    kind = i.parts[-1]
    if "shared::cluster" not in i.parts:
        raise UnsupportedInstruction(str(i))
    d, a, rank = s.dst(i.operands[0], kind), s.src(i.operands[1], kind), s.src(i.operands[2], "u32")

    def op(g: Group) -> None:
        x = g.R[a]
        offset = x & x.dtype.type(OFFSET_MASK)
        ranks = g.R[rank].astype(x.dtype) << x.dtype.type(RANK_SHIFT)
        np.copyto(g.R[d], offset | ranks, where=g.where)

    return op


HANDLERS: Mapping[str, Handler] = {
    "mbarrier": _mbarrier,
    "mapa": _mapa,
}
