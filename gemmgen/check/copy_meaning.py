"""What copies of rows mean that threads begin and wait for themselves: see meaning.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..ir import nodes as ir
from . import ops

if TYPE_CHECKING:
    from .meaning import Walk


def _copy(w: Walk, s: ir.CopyRows) -> None:
    """A group of its own."""
    w.add(ops.Begin, s, cells=w.cells(s), stage=w.round % w.kernel.stages)
    w.begun = min(w.begun + 1, s.most)


COPIES: dict[type[ir.Stmt], Callable[[Walk, Any], None]] = {
    ir.CopyRows: _copy,
    ir.WaitCopies: lambda w, s: w.add(ops.Come, s, pending=s.pending),
}
