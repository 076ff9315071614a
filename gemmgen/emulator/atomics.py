"""atom and red: read-modify-write, lane after lane (PTX ISA, atom and red)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .access import check_alignment, load, touch, words_of, writer
from .errors import UnsupportedInstruction
from .flags import acquire, acquires, publish, releases
from .group import Group
from .lanes import SHARED, active_lanes, address_slot, agent_of, bit, space_at, space_of, who
from .parse import size_of
from .program import NUMPY, Handler, Op, Scope
from .spaces import OFFSET_MASK, RANK_SHIFT
from .syntax import Instruction, Sink

ORDERING = ("acquire", "release", "acq_rel")
FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "min": min,
    "max": max,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "exch": lambda x, y: y,
    "inc": lambda x, y: x.dtype.type(0) if x >= y else x + x.dtype.type(1),
    "dec": lambda x, y: y if x == 0 or x > y else x - x.dtype.type(1),
}


def _atomic(i: Instruction, s: Scope) -> Op:
    """Of global memory, and of the CTA's own shared memory, relaxed. What one releases (.release, .acq_rel) whoever acquires it there is told."""
    kind, returns = i.parts[-1], i.parts[0] == "atom"
    name = next((p for p in i.parts[1:-1] if p in (*FUNCTIONS, "cas")), None)
    space = space_of(i)
    acquiring, releasing = acquires(i), releases(i)
    ordering = space in SHARED and {"shared::cluster", *ORDERING} & set(i.parts)
    if name is None or ordering or kind not in NUMPY or {"v2", "v4"} & set(i.parts):
        raise UnsupportedInstruction(str(i))
    operands = i.operands if returns else (Sink(), *i.operands)
    d = s.dst(operands[0], kind) if not isinstance(operands[0], Sink) else None
    address, sources = address_slot(operands[1], s), [s.src(o, kind) for o in operands[2:]]

    def shared(g: Group) -> None:
        addresses, lanes = address(g), active_lanes(g)
        check_alignment(g, addresses[lanes], size_of(kind), lanes)
        g.cta.launch.moved()
        for lane in lanes:
            values = [g.R[x][lane] for x in sources]

            def becomes(old: Any, values: Any = values) -> Any:
                new = _result(name, old.view(NUMPY[kind])[0, 0], values)
                return np.array([[new]], NUMPY[kind]).view(np.uint8)

            old = _update_shared(g, int(addresses[lane]), size_of(kind), int(lane), becomes)
            if d is not None:
                g.R[d][lane] = old.view(NUMPY[kind])[0, 0]

    def op(g: Group) -> None:
        addresses = address(g)
        for lane in active_lanes(g):
            at = addresses[lane : lane + 1]
            if space == "generic" and space_at(int(at[0])) != "global":
                raise UnsupportedInstruction(f"{i}: on shared memory")
            values = [g.R[x][lane] for x in sources]
            old = load(g, "global", at, size_of(kind), np.array([lane]), False).view(NUMPY[kind])[
                0, 0
            ]
            new = _result(name, old, values)
            raw = np.array([new], NUMPY[kind]).view(np.uint8).reshape(1, -1)
            if acquiring:
                acquire(g, at, [lane], acquiring)
            agent = agent_of(g, lane)
            by, seen = writer(g, agent, bit(lane), atomic=True)
            g.cta.launch.memory.store(at, raw, by, seen)
            if releasing:
                publish(g, at, [lane], releasing)
            if new != old:
                g.cta.launch.moved()
            if d is not None:
                g.R[d][lane] = old

    return shared if space in SHARED else op


def _update_shared(
    g: Group, address: int, size: int, lane: int, becomes: Callable[[Any], Any]
) -> Any:
    """uint8 [1, size] of the CTA's own memory, which the lane reads and writes at once; `becomes` says what, of that."""
    if address >> RANK_SHIFT != g.cta.rank:
        raise UnsupportedInstruction(f"{who(g, lane)}: updates another CTA's memory")
    tracker, agent, mask = g.cta.cluster.tracker, agent_of(g, lane), bit(lane)
    time, seen = tracker.touch(agent, mask), tracker.seen(agent, mask)
    at = np.array([address & OFFSET_MASK])
    index = touch(g, g.cta, at, size)
    old = g.cta.shared.update(index, words_of(at, size), agent, time, seen, who(g, lane)).copy()
    tracker.wrote(agent, mask, remote=False)
    g.cta.shared.put(index, becomes(old))
    return old


def _result(name: str, old: Any, values: list[Any]) -> Any:
    if name == "cas":
        return values[1] if old == values[0] else old
    return FUNCTIONS[name](old, values[0])


HANDLERS: Mapping[str, Handler] = {"atom": _atomic, "red": _atomic}
