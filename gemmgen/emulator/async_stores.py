"""Stores to shared memory that complete on an mbarrier (PTX ISA, st.async): weak, generic proxy.

The bytes are there once the phase has completed, for who waits for it with .acquire.cluster: the
completion is a release at cluster scope, and a wait at the narrower default scope sees another CTA's
stores of no kind. So they are an agent of their own beside the barrier's loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .access import items, words_of
from .errors import IllegalAccess, ProtocolError, UnsupportedInstruction
from .group import Group
from .lanes import address_slot, lane_mask, locate, per_warp, who
from .parse import size_of
from .program import Handler, Op, Scope
from .synchronise import barrier_at
from .syntax import Instruction

if TYPE_CHECKING:
    from .machine import Cta

PLACE, COMPLETION = "shared::cluster", "mbarrier::complete_tx::bytes"
KINDS = ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64")


def _st_async(i: Instruction, s: Scope) -> Op:
    kind, names = i.parts[-1], items(i.operands[1])
    if kind not in KINDS or not {PLACE, COMPLETION} <= set(i.parts):
        raise UnsupportedInstruction(str(i))
    slots = [s.src(x, kind) for x in names]
    address, bar, each = (
        address_slot(i.operands[0], s),
        address_slot(i.operands[2], s),
        size_of(kind),
    )

    def op(g: Group) -> None:
        at, bars = address(g), bar(g)
        for agent, lanes in per_warp(g):
            columns = [np.ascontiguousarray(g.R[x][lanes]).view(np.uint8) for x in slots]
            data = np.concatenate([c.reshape(lanes.size, each) for c in columns], 1)
            for one in np.unique(bars[lanes]):
                mine = bars[lanes] == one
                _start(g, agent, lane_mask(lanes[mine]), at[lanes[mine]], data[mine], int(one))

    return op


def _start(g: Group, agent: int, lanes: int, addresses: Any, data: Any, bar: int) -> None:
    """Claim the places now; the bytes arrive, and count, when the schedule says."""
    text, tracker, size = who(g), g.cta.cluster.tracker, data.shape[1]
    home, barrier = barrier_at(g, PLACE, bar)
    at = np.array([_within(g, home, int(a), size) for a in addresses])
    seen = tracker.seen(agent, lanes)
    barrier.check_visible(seen, text)
    if home is not g.cta:
        barrier.check_fenced(text)
    phase = barrier.phase
    stores = barrier.stores()
    home.touched(stores, phase + 1, text)
    index = at[:, None] + np.arange(size)
    words = words_of(at, size)
    home.shared.claim(words, stores, phase + 1, seen, text, proxy=False)
    home.shared.known[index] = False

    def complete() -> None:
        if home.exited:
            raise ProtocolError(f"{text}: CTA {home.index} has exited")
        home.shared.put(index, data)
        barrier.complete(data.size, phase, text)

    g.cta.cluster.start(complete, text)
    g.cta.launch.stats.copied(g.instruction, "store async", data.size)


def _within(g: Group, home: Cta, address: int, size: int) -> int:
    cta, at = locate(g, PLACE, address)
    if cta is not home:
        raise ProtocolError(f"{who(g)}: data to CTA {cta.index}, but the barrier is elsewhere")
    if at % size:
        raise IllegalAccess(f"{who(g)}: {at:#x} is not aligned to {size} bytes")
    cta.shared.check(at, at + size, who(g))
    return at


HANDLERS: Mapping[str, Handler] = {"st.async": _st_async}
