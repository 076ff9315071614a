"""Bulk copies and reductions from shared to global memory, in bulk groups (PTX ISA, cp.async.bulk,
cp.reduce.async.bulk and their tensor forms)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .bulk_groups import Item, group_of
from .convert import bf16
from .errors import ProtocolError, UnsupportedInstruction
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
from .memory import Writer
from .program import NUMPY, Op, Scope
from .regions import ALIGNMENT, TENSOR_ALIGNMENT, Region, coordinates, region, tensor_map_at
from .syntax import Instruction
from .tensor_map import place
from .tracker import ORDERED
from .views import View

Function = Callable[[Any, Any], Any]  # uint8 arrays: what was there, what comes
REDUCTIONS: Mapping[str, Function] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduction(i: Instruction) -> Callable[[str], Function] | None:
    """Of cp.reduce: element type -> the function on bytes. None for a plain store."""
    if i.parts[1] != "reduce":
        return None
    name = next((p for p in i.parts if p in REDUCTIONS), None)
    if name is None:
        raise UnsupportedInstruction(str(i))
    return lambda kind: _on_bytes(i, name, kind)


def _on_bytes(i: Instruction, name: str, kind: str) -> Function:
    function = REDUCTIONS[name]
    if kind == "bf16":
        return lambda x, y: _bf16(function(_from_bf16(x), _from_bf16(y)))
    if kind not in NUMPY or kind[0] == "b":
        raise UnsupportedInstruction(f"{i}: on elements of type {kind!r}")
    dtype = NUMPY[kind]
    return lambda x, y: np.ascontiguousarray(
        function(np.ascontiguousarray(x).view(dtype), np.ascontiguousarray(y).view(dtype))
    ).view(np.uint8)


def _from_bf16(raw: Any) -> Any:
    wide = np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


def _bf16(x: Any) -> Any:
    return np.ascontiguousarray(bf16(np.ascontiguousarray(x))).view(np.uint8)


def store_tensor(i: Instruction, s: Scope) -> Op:
    """Shared to global memory, replacing or reducing."""
    dst, source = (address_slot(o, s) for o in i.operands[:2])
    coords = coordinates(i.operands[0], s)
    combine = reduction(i)

    def op(g: Group) -> None:
        for lane in active_lanes(g):
            m = tensor_map_at(g, int(dst(g)[lane]), lane)
            box = place(m, coords(g, lane), store=True)
            cta, at = locate(g, "shared::cta", int(source(g)[lane]))
            of = region(g, lane, cta, at, m.box_bytes, m.swizzle, TENSOR_ALIGNMENT)
            kept = np.zeros((box.addresses.size, box.line_bytes), np.bool_)
            kept[box.inside, box.low : box.high] = True
            lines = box.addresses[box.inside] + box.low
            function = combine(m.element_type) if combine else None
            _start_store(g, lane, of, kept, lines, function)

    return op


def _start_store(
    g: Group, lane: int, of: Region, kept: Any, lines: Any, function: Function | None = None
) -> None:
    """The bytes of `of` where `kept` [lines, bytes] go to the global addresses `lines`; `function` of
    what was there and them, for a reduction."""
    check_dependency(g, lane)
    text, tracker, agent = who(g, lane), g.cta.cluster.tracker, agent_of(g, lane)
    group, launch = group_of(g, lane), g.cta.launch
    seen = tracker.seen(agent, bit(lane))
    time = group.warp.count + 1
    of.cta.shared.claim_read(of.words, group.warp.reads, time, seen, text)
    writer = Writer(
        cluster=g.cta.cluster.origin,
        agent=group.warp.writes,
        clock=time,
        what=text,
        atomic=function is not None,
    )
    item, at_issue = Item(), View(tracker=tracker, ordered=seen[ORDERED].copy())

    def read() -> None:
        data, known = of.get()
        of.cta.shared.check_known(known[kept.reshape(-1)], text)
        values = data[kept.reshape(-1)].reshape(lines.size, -1 if lines.size else 0)
        item.read = True
        g.cta.cluster.start(lambda: write(values), text)

    def write(values: Any) -> None:
        if function and lines.size:
            values = function(launch.memory.load(lines, values.shape[1], text), values)
        launch.memory.store(lines, values, writer, at_issue)
        item.written = True

    group.current.append(item)
    g.cta.cluster.start(read, text)
    launch.stats.copied(g.instruction, "store", int(kept.sum()))


def store_plain(i: Instruction, s: Scope) -> Op:
    """cp.async.bulk.global.shared::cta.bulk_group [dst], [src], size."""
    dst, source = (address_slot(o, s) for o in i.operands[:2])
    combine = reduction(i)
    size = value_of(i.operands[2], s)

    def op(g: Group) -> None:
        for lane in active_lanes(g):
            cta, at = locate(g, "shared::cta", int(source(g)[lane]))
            count, to = size(g, lane), int(dst(g)[lane])
            of = region(g, lane, cta, at, count, 0, ALIGNMENT)
            if to % ALIGNMENT:
                raise ProtocolError(f"{who(g, lane)}: global address {to:#x}: not a multiple of 16")
            function = combine(i.parts[-1]) if combine else None
            kept = np.ones((1, count), np.bool_)
            _start_store(g, lane, of, kept, np.array([to]), function)

    return op
