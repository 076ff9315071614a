"""Branches, exits, warp-wide exchanges, register counts (PTX ISA, sections 9.7.12 and 9.7.13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import ProtocolError, Trap, UnsupportedInstruction
from .fiber import LANES, WARP, Wait
from .group import Group
from .lanes import constant, lane_mask, per_warp, who
from .program import Handler, Op, Scope
from .syntax import Instruction, Pair, Reg, Symbol


def _bra(i: Instruction, s: Scope) -> Op:
    target = s.label(i.operands[0])
    if i.guard is None:
        return lambda g: target
    slot, negated = s.src(i.guard, "pred"), i.guard.negated

    def op(g: Group) -> int | None:
        taken = g.R[slot]
        return g.branch(g.active & ~taken if negated else g.active & taken, target)

    return op


def _brx(i: Instruction, s: Scope) -> Op:
    """brx.idx: the lanes may go to as many places as there are."""
    index, table = s.src(i.operands[0], "u32"), i.operands[1]
    assert isinstance(table, Symbol)
    targets = [s.function.labels[name] for name in s.function.tables[table.name]]

    def op(g: Group) -> int | None:
        places = np.unique(g.R[index][g.active])
        if int(places[-1]) >= len(targets):
            raise ProtocolError(f"{who(g)}: index {places[-1]} of {len(targets)} targets")
        for place in places[1:]:
            lanes = g.active & (g.R[index] == place)
            g.keep(g.active & ~lanes, targets[int(place)])
        return targets[int(places[0])]

    return op


def _exit(i: Instruction, s: Scope) -> Op:
    return lambda g: g.leave(g.active)


def _trap(i: Instruction, s: Scope) -> Op:
    def op(g: Group) -> None:
        raise Trap(f"{who(g)}: {g.waits()[0]}")

    return op


def _nothing(i: Instruction, s: Scope) -> Op:
    return lambda g: None


def _griddepcontrol(i: Instruction, s: Scope) -> Op:
    """The launch before is over whenever one begins here: what is left is to know who waited for it.
    launch_dependents only lets the next one begin."""
    if i.parts[1] != "wait":
        return _nothing(i, s)

    def op(g: Group) -> None:
        g.early = g.early & ~g.active

    return op


def _setmaxnreg(i: Instruction, s: Scope) -> Op:
    """Registers move between warpgroups through the CTA's pool; inc waits until it has enough."""
    count, grow = constant(i.operands[0], i), "inc" in i.parts
    if count % 8 or not 24 <= count <= 256:
        raise UnsupportedInstruction(f"{i}: {count} registers (multiples of 8 from 24 to 256)")

    def op(g: Group) -> int | None:
        if (waiting := g.collect(aligned=True, whole_group=True)) is not None:
            return waiting
        change = (count - g.registers) * LANES
        if g.lanes != LANES or ((change < 0) == grow and change != 0):
            raise ProtocolError(f"{who(g)}: from {g.registers} to {count} registers")
        pool = g.cta.pool
        if change > pool.free:
            pending = f"{change} registers; the CTA's pool has {{}}"
            return g.park(
                Wait(ready=lambda: change <= pool.free, what=lambda: pending.format(pool.free))
            )
        pool.free -= change
        g.registers = count
        return None

    return op


def _shfl(i: Instruction, s: Scope) -> Op:
    mode = i.parts[2]
    d, p = _pair(i.operands[0])
    to = s.dst(d, "u32") if d else None
    predicate = s.dst(p, "pred") if p else None
    a, b, c, member = (s.src(o, "u32") for o in i.operands[1:5])

    def op(g: Group) -> int | None:
        if (waiting := g.collect(need=members(g, g.R[member]))) is not None:
            return waiting
        rows = g.R[a].reshape(-1, WARP)
        from_lane, inside = _source_lane(mode, g.R[b].reshape(-1, WARP), g.R[c].reshape(-1, WARP))
        _check_sources(g, from_lane)
        if to is not None:
            moved = np.take_along_axis(rows, from_lane, 1).reshape(-1)
            np.copyto(g.R[to], moved, where=g.where)
        if predicate is not None:
            np.copyto(g.R[predicate], inside.reshape(-1), where=g.where)
        return None

    return op


def _source_lane(mode: str, b: Any, c: Any) -> tuple[Any, Any]:
    """As the pseudocode of the PTX ISA, shfl.sync: [warps, 32] lanes, and whether in range."""
    lane = np.arange(WARP, dtype=np.int64)[None, :]
    operand, clamp = (b & 31).astype(np.int64), (c & 31).astype(np.int64)
    segment = (c >> np.uint32(8) & 31).astype(np.int64)
    low, high = lane & segment, lane & segment | clamp & ~segment
    found = {
        "up": lambda: lane - operand,
        "down": lambda: lane + operand,
        "bfly": lambda: lane ^ operand,
        "idx": lambda: low | operand & ~segment,
    }[mode]()
    inside = found >= high if mode == "up" else found <= high
    return np.where(inside, found, lane), inside


def _check_sources(g: Group, from_lane: Any) -> None:
    """Reading a lane that does not take part is undefined."""
    active = g.active.reshape(-1, WARP)
    bad = active & ~np.take_along_axis(active, from_lane, 1)
    if bad.any():
        lane = int(np.flatnonzero(bad.reshape(-1))[0])
        raise ProtocolError(f"{who(g, lane)}: reads a lane that does not take part")


def members(g: Group, masks: Any) -> Any:
    """The lanes that the member masks of the active lanes name."""
    words = np.zeros(g.warps, np.uint32)
    for w in range(g.warps):
        here = slice(w * WARP, (w + 1) * WARP)
        active = np.flatnonzero(g.active[here])
        words[w] = masks[here][active[0]] if active.size else 0
    bits = words[:, None] >> np.arange(WARP, dtype=np.uint32)[None, :] & np.uint32(1)
    return bits.astype(np.bool_).reshape(-1)


def _pair(operand: Any) -> tuple[Reg | None, Reg | None]:
    if isinstance(operand, Pair):
        return operand.first, operand.second
    return (operand, None) if isinstance(operand, Reg) else (None, None)


def _ballots(g: Group, holds: Any) -> Any:
    """uint32 per lane: its warp's active lanes for which `holds`."""
    bits = (holds & g.active).reshape(-1, WARP)
    words = (bits.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(1).astype(np.uint32)
    return np.repeat(words, WARP)


def _vote(i: Instruction, s: Scope) -> Op:
    mode = i.parts[2]
    d = s.dst(i.operands[0], "u32" if mode == "ballot" else "pred")
    a, member = s.src(i.operands[1], "pred"), s.src(i.operands[2], "u32")
    negated = isinstance(i.operands[1], Reg) and i.operands[1].negated

    def op(g: Group) -> int | None:
        if (waiting := g.collect(need=members(g, g.R[member]))) is not None:
            return waiting
        holds = g.R[a] ^ negated
        yes, no = _ballots(g, holds), _ballots(g, ~holds)
        results = {"ballot": yes, "all": no == 0, "any": yes != 0, "uni": (yes == 0) | (no == 0)}
        np.copyto(g.R[d], results[mode], where=g.where)
        return None

    return op


def _match(i: Instruction, s: Scope) -> Op:
    """match.any: the lanes that have the same value. match.all: those that take part if all have, and whether; else none."""
    kind, every = i.parts[-1], i.parts[1] == "all"
    d, p = _pair(i.operands[0])
    to = s.dst(d, "u32") if d else None
    predicate = s.dst(p, "pred") if p else None
    a, member = s.src(i.operands[1], kind), s.src(i.operands[2], "u32")

    def op(g: Group) -> int | None:
        if (waiting := g.collect(need=members(g, g.R[member]))) is not None:
            return waiting
        rows = g.R[a].reshape(-1, WARP)
        here = g.active.reshape(-1, WARP)
        same = (rows[:, :, None] == rows[:, None, :]) & here[:, None, :]
        bits = same.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)
        words = bits.sum(2).astype(np.uint32).reshape(-1)
        alike = words == _ballots(g, np.ones(g.lanes, np.bool_))
        if to is not None:
            found = np.where(alike, words, np.uint32(0)) if every else words
            np.copyto(g.R[to], found, where=g.where)
        if predicate is not None:
            np.copyto(g.R[predicate], alike, where=g.where)
        return None

    return op


def _activemask(i: Instruction, s: Scope) -> Op:
    d = s.dst(i.operands[0], "u32")

    def op(g: Group) -> None:
        np.copyto(g.R[d], _ballots(g, np.ones(g.lanes, np.bool_)), where=g.where)

    return op


def _elect(i: Instruction, s: Scope) -> Op:
    """One lane of each warp: the lowest, as on the hardware; the PTX ISA lets it be any."""
    d, p = _pair(i.operands[0])
    lane_slot, predicate = s.dst(d, "u32") if d else None, s.dst(p, "pred") if p else None
    member = s.src(i.operands[1], "u32")

    def op(g: Group) -> int | None:
        if (waiting := g.collect(need=members(g, g.R[member]))) is not None:
            return waiting
        first = np.repeat(g.active.reshape(-1, WARP).argmax(1), WARP)
        if lane_slot is not None:
            np.copyto(g.R[lane_slot], first.astype(np.uint32), where=g.where)
        if predicate is not None:
            np.copyto(g.R[predicate], np.arange(g.lanes) % WARP == first, where=g.where)
        return None

    return op


def _bar_warp(i: Instruction, s: Scope) -> Op:
    """bar.warp.sync: its lanes see what each of them did before it."""
    member = s.src(i.operands[0], "u32")

    def op(g: Group) -> int | None:
        if (waiting := g.collect(need=members(g, g.R[member]))) is not None:
            return waiting
        for agent, lanes in per_warp(g):
            g.cta.cluster.tracker.meet(agent, lane_mask(lanes))
        return None

    return op


HINTS = (
    "prefetch",
    "prefetchu",
    "nanosleep",
    "pmevent",
    "applypriority",
    "discard",
)
BLOCKING = (
    "bar",
    "barrier",
    "exit",
    "ret",
    "setmaxnreg",
    "shfl",
    "vote",
    "match",
    "redux",
    "elect",
    "mbarrier",
    "cp",
)

HANDLERS: Mapping[str, Handler] = {
    "bra": _bra,
    "brx": _brx,
    "exit": _exit,
    "ret": _exit,
    "trap": _trap,
    "griddepcontrol": _griddepcontrol,
    "setmaxnreg": _setmaxnreg,
    "shfl": _shfl,
    "vote": _vote,
    "match": _match,
    "activemask": _activemask,
    "elect": _elect,
    "bar.warp": _bar_warp,
    **dict.fromkeys(HINTS, _nothing),
}
