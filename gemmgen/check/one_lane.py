"""What one lane of a warp does for all of it: see meaning.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..ir import nodes as ir
from . import ops

if TYPE_CHECKING:
    from .meaning import Walk


def one_lane(w: Walk, s: ir.Stmt, kind: Callable[..., ops.Op], **fields: Any) -> None:
    outer, w.single = w.single, True
    w.add(kind, s, **fields)
    w.single = outer
