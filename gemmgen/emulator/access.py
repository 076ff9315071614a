"""Loads and stores of lanes (PTX ISA, ld, st, stmatrix)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import IllegalAccess, ProtocolError, UnsupportedInstruction
from .fiber import WARP
from .flags import STRONG, WIDE, acquire, acquires, publish, releases
from .group import Group
from .lanes import (
    SHARED,
    address_slot,
    check_dependency,
    check_read_only,
    lane_mask,
    per_warp,
    space_at,
    space_of,
    who,
)
from .memory import Writer
from .parse import size_of
from .program import NUMPY, Handler, Op, Scope
from .races import WORD
from .spaces import OFFSET_MASK, PARAM_WINDOW, RANK_SHIFT, SHARED_WINDOW
from .syntax import Address, Instruction, Operand, Sink, Symbol, Vector
from .tracker import ORDERED
from .views import View

if TYPE_CHECKING:
    from .machine import Cta

VECTORS = {"v2": 2, "v4": 4, "v8": 8}


def items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _ld(i: Instruction, s: Scope) -> Op:
    kind, space = i.parts[-1], space_of(i)
    if space == "local":
        raise UnsupportedInstruction(str(i))
    names = items(i.operands[0])
    wide = [
        None if isinstance(x, Sink) else (s.wide(x, kind) if kind[0] in "usb" else kind)
        for x in names
    ]
    slots = [None if w is None else s.dst(x, w) for x, w in zip(names, wide, strict=True)]
    address, each = address_slot(i.operands[1], s), size_of(kind)
    base = i.operands[1].base if isinstance(i.operands[1], Address) else None
    where = "param" if isinstance(base, Symbol) and space == "generic" else space
    size = each * len(names)

    weak, acquiring = not STRONG & set(i.parts), acquires(i)
    read_only = "nc" in i.parts or i.parts[0] == "ldu"

    def op(g: Group) -> None:
        lanes = np.flatnonzero(g.active)
        if read_only:
            check_read_only(g, address(g)[lanes], size)
        data = load(g, where, address(g)[lanes], size, lanes, weak)
        if acquiring:
            acquire(g, address(g)[lanes], lanes, acquiring)
        values = np.ascontiguousarray(data).view(NUMPY[kind])
        for k, slot in enumerate(slots):
            if slot is not None:
                g.R[slot][lanes] = values[:, k]

    return op


def _st(i: Instruction, s: Scope) -> Op:
    kind, space = i.parts[-1], space_of(i)
    if space not in (*SHARED, "global", "generic"):
        raise UnsupportedInstruction(str(i))
    names = items(i.operands[1])
    slots = [s.src(x, kind) for x in names]
    address, each, releasing = address_slot(i.operands[0], s), size_of(kind), releases(i)
    apart = not WIDE.isdisjoint(i.parts)  # lanes may tell a GPU each

    def op(g: Group) -> None:
        lanes = np.flatnonzero(g.active)
        columns = [np.ascontiguousarray(g.R[x][lanes]).view(np.uint8) for x in slots]
        data = np.concatenate([c.reshape(lanes.size, each) for c in columns], 1)
        parts = [[n] for n in range(lanes.size)] if apart else [slice(None)]
        for x in parts:
            store(g, space, address(g)[lanes[x]], data[x], lanes[x])
        if releasing:
            publish(g, address(g)[lanes], lanes, releasing)

    return op


def load(g: Group, space: str, addresses: Any, size: int, lanes: Any, weak: bool = True) -> Any:
    """uint8 [lanes, size] from the state space `space`. weak: of global memory, not beside a write."""
    check_alignment(g, addresses, size, lanes)
    if space == "generic":
        space, addresses = _one_space(g, addresses)
    if space in SHARED:
        return _load_shared(g, addresses, size, lanes)
    if space == "param":
        raw = np.frombuffer(g.cta.launch.params, np.uint8)
        return raw[addresses[:, None] + np.arange(size)]
    check_dependency(g, lanes, addresses, size)
    if weak:
        for agent, mine in _views(g, lanes):
            cluster = g.cta.cluster
            seen = cluster.tracker.seen(agent, lane_mask(lanes[mine]))
            view = View(tracker=cluster.tracker, ordered=seen[ORDERED])
            g.cta.launch.memory.check_read(addresses[mine], size, cluster.origin, view, who(g))
    return g.cta.launch.memory.load(addresses, size, who(g, int(lanes[0])))


def store(g: Group, space: str, addresses: Any, data: Any, lanes: Any) -> None:
    check_alignment(g, addresses, data.shape[1], lanes)
    g.cta.launch.moved()
    if space == "generic":
        space, addresses = _one_space(g, addresses)
    if space in SHARED:
        _store_shared(g, addresses, data, lanes)
        return
    check_dependency(g, lanes)
    for agent, mine in _views(g, lanes):
        by, seen = writer(g, agent, lane_mask(lanes[mine]))
        g.cta.cluster.tracker.loads.end(agent, by.clock)
        g.cta.launch.memory.store(addresses[mine], data[mine], by, seen)


def writer(g: Group, agent: int, lanes: int, atomic: bool = False) -> tuple[Writer, View]:
    """Lanes (a mask) of the warp, writing global memory now, and what that is ordered after."""
    tracker = g.cta.cluster.tracker
    by = Writer(
        cluster=g.cta.cluster.origin,
        agent=agent,
        clock=tracker.touch(agent, lanes),
        what=who(g),
        atomic=atomic,
    )
    return by, View(tracker=tracker, ordered=tracker.seen(agent, lanes)[ORDERED])


def _split(g: Group, lanes: Any) -> list[tuple[int, Any]]:
    """(agent, positions in `lanes`) of each warp."""
    first = g.cta.cluster.tracker.warp(g.cta.rank, g.first_warp)
    warp = lanes // WARP
    return [(first + int(w), np.flatnonzero(warp == w)) for w in np.unique(warp)]


def _views(g: Group, lanes: Any) -> list[tuple[int, Any]]:
    """The same, lanes that have seen more than their warp by themselves."""
    found = []
    for agent, mine in _split(g, lanes):
        if apart := g.cta.cluster.tracker.apart(agent):
            alone = np.isin(lanes[mine] % WARP, apart)
            found += [(agent, x) for x in mine[alone][:, None]]
            mine = mine[~alone]
        if mine.size:
            found.append((agent, mine))
    return found


def check_alignment(g: Group, addresses: Any, size: int, lanes: Any) -> None:
    bad = addresses % size if size & size - 1 == 0 else addresses % 4
    if bad.any():
        k = int(np.flatnonzero(bad)[0])
        at = int(addresses[k])
        raise IllegalAccess(f"{who(g, int(lanes[k]))}: {at:#x} is not aligned to {size} bytes")


def _one_space(g: Group, addresses: Any) -> tuple[str, Any]:
    """What a generic address means; all lanes of one access must mean the same space."""
    spaces = {space_at(int(a)) for a in addresses}
    if len(spaces) != 1:
        raise UnsupportedInstruction(f"{who(g)}: lanes access {sorted(spaces)} at once")
    space = spaces.pop()
    windows = {"shared": SHARED_WINDOW, "param": PARAM_WINDOW}
    return space, addresses - windows.get(space, 0)


def _by_cta(g: Group, addresses: Any) -> list[tuple[Cta, Any]]:
    """(CTA, positions) that shared::cluster addresses name."""
    ranks = addresses >> RANK_SHIFT
    if (ranks == g.cta.rank).all():
        return [(g.cta, slice(None))]
    return [
        (g.cta.cluster.cta(int(r), who(g)), np.flatnonzero(ranks == r)) for r in np.unique(ranks)
    ]


def _reach(g: Group, cta: Cta, agent: int, time: int, lanes: int) -> None:
    """Another CTA's memory is there once that has begun, which the cluster barrier says, and until it exits."""
    if cta is g.cta:
        return
    if g.cta.rank not in g.cta.cluster.barrier.met:
        raise ProtocolError(
            f"{who(g)}: CTA {cta.index} may not have begun: nothing has waited at the cluster barrier"
        )
    cta.touched(agent, time, who(g), lanes)


def touch(g: Group, cta: Cta, at: Any, size: int) -> Any:
    """Byte indices [n, size], checked."""
    cta.shared.check(int(at.min()), int(at.max()) + size, who(g))
    return at[:, None] + np.arange(size)


def words_of(at: Any, size: int) -> Any:
    """The race detector's words of accesses of `size` bytes."""
    if size <= WORD:
        return at // WORD
    return (at[:, None] // WORD + np.arange(size // WORD)).reshape(-1)


def _load_shared(g: Group, addresses: Any, size: int, lanes: Any) -> Any:
    data = np.empty((lanes.size, size), np.uint8)
    tracker = g.cta.cluster.tracker
    g.cta.launch.stats.shared_access(g.instruction, addresses & OFFSET_MASK, size, lanes)
    for agent, mine in _views(g, lanes):
        for cta, part in _by_cta(g, addresses[mine]):
            at = addresses[mine][part] & OFFSET_MASK
            index = touch(g, cta, at, size)
            mask = lane_mask(lanes[mine])
            time, seen = tracker.touch(agent, mask), tracker.seen(agent, mask)
            _reach(g, cta, agent, time, mask)
            tracker.loads.begin(agent, time)
            chosen = mine[part] if not isinstance(part, slice) else mine
            data[chosen] = cta.shared.read(
                index, words_of(at, size), agent, time, seen, who(g), proxy=False
            )
    return data


def _store_shared(g: Group, addresses: Any, data: Any, lanes: Any) -> None:
    tracker, size = g.cta.cluster.tracker, data.shape[1]
    g.cta.launch.stats.shared_access(g.instruction, addresses & OFFSET_MASK, size, lanes)
    for agent, mine in _views(g, lanes):
        for cta, part in _by_cta(g, addresses[mine]):
            at = addresses[mine][part] & OFFSET_MASK
            index = touch(g, cta, at, size)
            mask = lane_mask(lanes[mine])
            time, seen = tracker.touch(agent, mask), tracker.seen(agent, mask)
            _reach(g, cta, agent, time, mask)
            words = words_of(at, size)
            cta.shared.claim(words, agent, time, seen, who(g), proxy=False)
            tracker.wrote(agent, mask, remote=cta is not g.cta)
            tracker.loads.end(agent, time)
            cta.shared.put(index, data[mine][part])


def _matrix(i: Instruction, s: Scope) -> Op:
    """stmatrix: 8 x 8 matrices of 16-bit elements; the addresses of matrix m's rows come
    from lanes 8m to 8m + 7, lane l holds elements 2 (l % 4) and the next of row l / 4."""
    shape, count = i.parts[3], {"x1": 1, "x2": 2, "x4": 4}[i.parts[4]]
    if shape != "m8n8" or i.parts[-1] != "b16":
        raise UnsupportedInstruction(str(i))
    slots = [s.src(x, "b32") for x in items(i.operands[1])]
    address, transposed = address_slot(i.operands[0], s), "trans" in i.parts
    if len(slots) != count:
        raise UnsupportedInstruction(f"{i}: {len(slots)} registers")

    def op(g: Group) -> int | None:
        if (waiting := g.collect(aligned=True)) is not None:
            return waiting
        all_addresses = address(g)
        for _, lanes in per_warp(g):
            holders = lanes[: 8 * count]
            matrices = _matrices(g, slots, lanes, transposed)
            store(g, "shared", all_addresses[holders], matrices, holders)
        return None

    return op


def _matrices(g: Group, slots: list[int], lanes: Any, transposed: bool) -> Any:
    """uint8 [rows of all matrices, 16]."""
    values = np.stack([g.R[x][lanes] for x in slots])  # [matrix, lane], two elements each
    matrices = np.ascontiguousarray(values).view(np.uint16).reshape(len(slots), 8, 8)
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    return np.ascontiguousarray(matrices).reshape(-1, 8).view(np.uint8)


HANDLERS: Mapping[str, Handler] = {
    "ld": _ld,
    "ldu": _ld,
    "st": _st,
    "stmatrix": _matrix,
}
