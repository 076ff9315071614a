"""Bulk copies from global to shared memory (PTX ISA, cp.async.bulk and cp.async.bulk.tensor)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import ProtocolError
from .fiber import WARP
from .group import Group
from .lanes import (
    active_lanes,
    address_slot,
    agent_of,
    bit,
    check_dependency,
    locate,
    value_of,
    who,
)
from .program import Op, Scope
from .regions import (
    ALIGNMENT,
    TENSOR_ALIGNMENT,
    Region,
    coordinates,
    region,
    tensor_map_at,
    use_map,
)
from .synchronise import barrier_at
from .syntax import Instruction
from .tensor_map import place
from .tracker import ORDERED
from .views import View

if TYPE_CHECKING:
    pass


def load_tensor(i: Instruction, s: Scope) -> Op:
    """Global to shared memory, to one CTA or to every CTA of a mask, at the same offset."""
    dst, source, bar = (address_slot(o, s) for o in i.operands[:3])
    coords = coordinates(i.operands[1], s)
    multicast = "multicast::cluster" in i.parts
    mask = value_of(i.operands[3], s, "u16") if multicast else None

    def op(g: Group) -> None:
        for lane in active_lanes(g):
            m = tensor_map_at(g, int(source(g)[lane]), lane)
            at = coords(g, lane)
            if len(at) != len(m.dims):
                raise ProtocolError(f"{who(g, lane)}: {len(at)} coordinates for {m}")
            box = place(m, at, store=False)
            check_dependency(g, lane, *_lines(box))
            _check_source(g, lane, *_lines(box))
            where, bar_at = int(dst(g)[lane]), int(bar(g)[lane])
            for cta_dst, cta_bar in _targets(
                g, lane, where, bar_at, mask(g, lane) if mask else None
            ):
                target, offset = locate(g, "shared::cluster", cta_dst)
                to = region(g, lane, target, offset, m.box_bytes, m.swizzle, TENSOR_ALIGNMENT)
                user = _start_load(g, lane, to, cta_bar, partial(_fetch, g, box))
                use_map(g, int(source(g)[lane]), lane, *user)

    return op


def _targets(g: Group, lane: int, dst: int, bar: int, mask: int | None) -> list[tuple[int, int]]:
    """(destination, barrier) as cluster addresses."""
    if mask is None:
        return [(dst, bar)]
    cluster = g.cta.cluster
    if mask == 0 or mask >> cluster.size:
        raise ProtocolError(f"{who(g, lane)}: mask {mask:#x} in a cluster of {cluster.size}")
    ranks = [r for r in range(cluster.size) if mask >> r & 1]
    return [(cluster.address(r, dst), cluster.address(r, bar)) for r in ranks]


def _start_load(
    g: Group, lane: int, to: Region, bar: int, fetch: Callable[[str], Any]
) -> tuple[int, int]:
    """Claim the destination now; the bytes arrive, and count, when the schedule says. Returns the agent
    of these loads and its time when they are done."""
    text, tracker, agent = who(g, lane), g.cta.cluster.tracker, agent_of(g, lane)
    home, barrier = barrier_at(g, "shared::cluster", bar)
    if home is not to.cta:
        raise ProtocolError(f"{text}: data to CTA {to.cta.index}, but the barrier is elsewhere")
    seen = tracker.seen(agent, bit(lane))
    barrier.check_visible(seen, text)
    barrier.check_fenced(text)
    phase = barrier.phase
    to.cta.touched(barrier.agent, phase + 1, text)
    to.cta.shared.claim(to.words, barrier.agent, phase + 1, seen, text, proxy=True)
    to.poison()

    def complete() -> None:
        if to.cta.exited:
            raise ProtocolError(f"{text}: CTA {to.cta.index} has exited")
        to.put(fetch(text))
        barrier.complete(to.size, phase, text)

    g.cta.cluster.start(complete, text)
    g.cta.launch.stats.copied(g.instruction, "load", to.size)
    return barrier.agent, phase + 1


def _check_source(g: Group, lane: int, lines: Any, size: int) -> None:
    """Raise Race unless what others of this launch, or other GPUs, have written there is ordered before, through both proxies."""
    if not lines.size:
        return
    cluster, agent = g.cta.cluster, agent_of(g, lane)
    tracker, memory = cluster.tracker, g.cta.launch.memory
    ordered = View(tracker=tracker, ordered=tracker.seen(agent, bit(lane))[ORDERED])
    memory.check_read(lines, size, cluster.origin, ordered, who(g, lane))
    through = View(tracker=tracker, ordered=tracker.arrived(agent, lane % WARP))
    link = "through the async proxy, with no fence.proxy.async between it and"
    memory.check_read(lines, size, cluster.origin, through, who(g, lane), link)


def _lines(box: Any) -> tuple[Any, int]:
    """Where the parts of a box's lines lie that are inside the tensor, and how long they are."""
    size = max(0, box.high - box.low)
    return box.addresses[box.inside if size else slice(0)] + box.low, size


def _fetch(g: Group, box: Any, text: str) -> Any:
    """The box's bytes; what lies outside the tensor is zero."""
    data = np.zeros((box.addresses.size, box.line_bytes), np.uint8)
    lines, size = _lines(box)
    if lines.size:
        data[box.inside, box.low : box.high] = g.cta.launch.memory.load(lines, size, text)
    return data


def load_plain(i: Instruction, s: Scope) -> Op:
    """cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [dst], [src], size, [bar]."""
    dst, source, bar = (address_slot(i.operands[k], s) for k in (0, 1, 3))
    size = value_of(i.operands[2], s)

    def op(g: Group) -> None:
        for lane in active_lanes(g):
            cta, at = locate(g, "shared::cluster", int(dst(g)[lane]))
            count, start = size(g, lane), int(source(g)[lane])
            to = region(g, lane, cta, at, count, 0, ALIGNMENT)
            if start % ALIGNMENT:
                raise ProtocolError(
                    f"{who(g, lane)}: global address {start:#x}: not a multiple of 16"
                )
            line = np.array([start])
            check_dependency(g, lane, line, count)
            _check_source(g, lane, line, count)
            memory = g.cta.launch.memory
            _start_load(g, lane, to, int(bar(g)[lane]), partial(memory.load, line, count))

    return op
