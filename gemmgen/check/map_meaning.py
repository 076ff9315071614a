"""What the statements that derive tensor maps mean: see meaning.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..ir import nodes as ir
from . import ops

if TYPE_CHECKING:
    from .meaning import Walk


def slot_of(w: Walk, tensor_map: str) -> ops.Slot:
    """Where this CTA keeps the map for the tile's group."""
    return tensor_map, w.agent.cta, w.instance.group(w.tile)


def _edit(field: str) -> Callable[[Walk, Any], None]:
    return lambda w, s: w.add(ops.MapEdit, s, tensor_map=s.tensor_map, field=field)


def _publish(w: Walk, s: ir.PublishMap) -> None:
    w.add(ops.MapPublish, s, slot=slot_of(w, s.tensor_map))


def _acquire(w: Walk, s: ir.AcquireMap) -> None:
    w.add(ops.MapAcquire, s, slot=slot_of(w, s.tensor_map))


MAPS: dict[type[ir.Stmt], Callable[[Walk, Any], None]] = {
    ir.CopyMap: lambda w, s: w.add(ops.MapCopy, s, tensor_map=s.tensor_map),
    ir.ReplaceAddress: _edit("address"),
    ir.ReplaceExtent: _edit("extent"),
    ir.ReplaceStride: _edit("stride"),
    ir.PublishMap: _publish,
    ir.AcquireMap: _acquire,
}
