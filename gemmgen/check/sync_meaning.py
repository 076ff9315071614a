"""What statements mean by which threads meet, and order what they did: see meaning.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..ir import nodes as ir
from . import ops

if TYPE_CHECKING:
    from .meaning import Walk


def _sync(w: Walk, s: ir.Sync) -> None:
    if s.of == "warp":
        w.add(ops.WarpSync, s)
    elif s.of == "warpgroup":
        _named(w, s)
    elif s.of == "consumers":
        name = ("named barrier", w.agent.cta, s.first_id)
        w.add(ops.Sync, s, name=name, threads=w.threads, total=128 * s.warpgroups)
    elif s.of == "cta":
        w.add(ops.Sync, s, name=(s.of, w.agent.cta, 0), threads=w.threads, total=None)
    else:
        _of_cluster(w, s)


def _of_cluster(w: Walk, s: ir.Sync) -> None:
    name = "cluster", w.peers[0], 0
    if s.of == "cluster":
        w.add(ops.Sync, s, name=name, threads=w.threads, total=None)
    elif s.of == "cluster_arrive":
        w.add(ops.Enter, s, name=name, threads=w.threads)
    elif not w.met:
        w.add(ops.Meet, s, name=name)
        w.met = True


def _named(w: Walk, s: ir.Sync) -> None:
    if w.agent.warpgroup < s.warpgroups:
        name = ("named barrier", w.agent.cta, s.first_id + w.agent.warpgroup)
        w.add(ops.Sync, s, name=name, threads=w.threads, total=128)


def _fence(w: Walk, s: ir.Fence) -> None:
    """A fence for the async proxy orders the writes of the thread that executes it: one thread's fences no warp's."""
    if s.of == "arrivals":
        w.add(ops.ArrivalFence, s)
    elif s.of != "async":
        w.add(ops.InitFence if s.of == "barriers" else ops.RegisterFence, s)
    elif not w.single:
        w.add(ops.ProxyFence, s)


SYNCS: dict[type[ir.Stmt], Callable[[Walk, Any], None]] = {ir.Fence: _fence, ir.Sync: _sync}
