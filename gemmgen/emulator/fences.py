"""Fences: of scopes, of proxies and their state spaces, of mbarrier.init (PTX ISA, membar/fence)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .errors import UnsupportedInstruction
from .group import Group
from .lanes import SHARED, address_slot, lane_mask, per_warp, who
from .program import Handler, Op, Scope
from .syntax import Instruction


def _fence(i: Instruction, s: Scope) -> Op:
    if "proxy" in i.parts:
        if "async" in i.parts:
            return _each_warp(_proxy_fence(i))
        if any(p.startswith("tensormap") for p in i.parts):
            return _map_fence(i, s)
        raise UnsupportedInstruction(str(i))
    if "mbarrier_init" in i.parts:
        return _each_warp(_init_fence)
    if {"cta", "acquire"} & set(i.parts):  # of no use to who is in another CTA, or releases
        return _each_warp(lambda g, agent, lanes: None)
    return _each_warp(_release_fence)


def _map_fence(i: Instruction, s: Scope) -> Op:
    """fence.proxy.tensormap::generic: acquire takes the map's address and size."""
    if "acquire" not in i.parts:
        return _each_warp(_release_fence)
    address = address_slot(i.operands[0], s)

    def op(g: Group) -> None:
        addresses, memory = address(g), g.cta.launch.memory
        for agent, lanes in per_warp(g):
            for at in {int(a) for a in addresses[lanes]}:
                g.cta.cluster.acquired_maps[agent, at] = memory.last_write(at, who(g))

    return op


def _each_warp(function: Callable[[Group, int, Any], None]) -> Op:
    def op(g: Group) -> None:
        for agent, lanes in per_warp(g):
            function(g, agent, lanes)

    return op


def _release_fence(g: Group, agent: int, lanes: Any) -> None:
    g.cta.cluster.tracker.fence(agent, lane_mask(lanes))


def _proxy_fence(i: Instruction) -> Callable[[Group, int, Any], None]:
    """Of the state spaces that it names, all if none: what has no shared memory in it orders nothing there, and only what has global memory what others wrote there."""
    spaces = {p for p in i.parts if p in ("global", *SHARED)}
    remote = not spaces or "shared::cluster" in spaces
    shared = remote or bool(spaces & set(SHARED))
    of_global = not spaces or "global" in spaces

    def fence(g: Group, agent: int, lanes: Any) -> None:
        if of_global:
            g.cta.cluster.tracker.arrive(agent, lane_mask(lanes))
        if shared:
            g.cta.cluster.tracker.proxy_fence(agent, lane_mask(lanes), remote=remote)
            _mark_fenced(g, lanes)

    return fence


def _init_fence(g: Group, agent: int, lanes: Any) -> None:
    g.cta.cluster.tracker.init_fence(agent, lane_mask(lanes))
    _mark_fenced(g, lanes)


def _mark_fenced(g: Group, lanes: Any) -> None:
    """mbarriers of its CTA that these threads have initialised."""
    for barrier in g.cta.shared.barriers.values():
        if barrier.thread - g.first in lanes:
            barrier.fenced = True


HANDLERS: Mapping[str, Handler] = {"fence": _fence, "membar": _fence}
