"""tensormap.replace and tensormap.cp_fenceproxy: maps changed on the device (PTX ISA, tensormap)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .access import load, store
from .errors import ProtocolError, UnsupportedInstruction
from .group import Group
from .lanes import (
    active_lanes,
    address_slot,
    constant,
    lane_mask,
    per_warp,
    space_of,
    value_of,
    who,
)
from .program import Handler, Op, Scope
from .syntax import Instruction
from .tensor_map import BYTES, LAYOUT, MAGIC

# Position in LAYOUT's tuple; the fields of a list are counted by the instruction's ordinal.
SCALARS = {"global_address": 5}
LISTS = {"global_dim": (6, 5), "global_stride": (11, 4), "box_dim": (15, 5)}


def _replace(i: Instruction, s: Scope) -> Op:
    field, space = i.parts[3], space_of(i)
    address, kind = address_slot(i.operands[0], s), i.parts[-1]
    value = value_of(i.operands[-1], s, "u64" if kind == "b64" else "u32")
    position = _position(i, field)

    def op(g: Group) -> None:
        for lane in active_lanes(g):
            lanes = np.array([lane])
            at = address(g)[lanes]
            raw = load(g, space, at, BYTES, lanes)
            changed = _changed(g, raw[0].tobytes(), position, value(g, lane))
            store(g, space, at, changed, lanes)

    return op


def _position(i: Instruction, field: str) -> int:
    if field in SCALARS:
        return SCALARS[field]
    if field in LISTS:
        first, count = LISTS[field]
        ordinal = constant(i.operands[1], i)
        if 0 <= ordinal < count:
            return first + ordinal
    raise UnsupportedInstruction(str(i))


def _changed(g: Group, raw: bytes, position: int, value: int) -> Any:
    fields = list(LAYOUT.unpack(raw[: LAYOUT.size]))
    if fields[0] != MAGIC:
        raise ProtocolError(f"{who(g)}: there is no tensor map")
    fields[position] = value
    packed = LAYOUT.pack(*fields).ljust(BYTES, b"\0")
    return np.frombuffer(packed, np.uint8).reshape(1, BYTES)


def _copy(i: Instruction, s: Scope) -> Op:
    """The warp copies a map from shared to global memory and releases it."""
    dst, source = (address_slot(o, s) for o in i.operands[:2])
    if constant(i.operands[2], i) != BYTES:
        raise UnsupportedInstruction(str(i))

    def op(g: Group) -> int | None:
        if (waiting := g.collect(aligned=True)) is not None:
            return waiting
        for agent, lanes in per_warp(g):
            first = lanes[:1]
            raw = load(g, "shared::cta", source(g)[first], BYTES, first)
            store(g, "global", dst(g)[first], raw, first)
            g.cta.cluster.tracker.fence(agent, lane_mask(lanes))
        return None

    return op


def _tensormap(i: Instruction, s: Scope) -> Op:
    forms: Mapping[str, Handler] = {"replace": _replace, "cp_fenceproxy": _copy}
    if i.parts[1] not in forms:
        raise UnsupportedInstruction(str(i))
    return forms[i.parts[1]](i, s)


HANDLERS: Mapping[str, Handler] = {"tensormap": _tensormap}
