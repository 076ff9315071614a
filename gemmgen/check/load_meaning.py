"""What a load means: see meaning.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir import nodes as ir
from ..ir.stmts import multicasts
from . import ops
from .arrivals_meaning import source
from .map_meaning import slot_of

if TYPE_CHECKING:
    from .meaning import Walk


def load(w: Walk, s: ir.TmaLoad) -> None:
    """A box, in each CTA that it goes to."""
    box = w.kernel.map(s.tensor_map).box or (0, 0)
    size = box[0] * box[1] * w.kernel.buffer(s.smem).dtype.bytes * w.threads
    peers = [w.agent.cta]
    if multicasts(s):
        peers = [c for i, c in enumerate(w.peers) if s.mask >> i & 1]
    slot = slot_of(w, s.tensor_map) if w.kernel.map(s.tensor_map).derived else None
    copies = tuple(
        ops.Copy(bar=w.bar(s.barrier, 0, c), cells=w.cells(s, c), size=size, stmt=s, slot=slot)
        for c in peers
    )
    _issue(w, s, copies, source(w, s.tensor_map))


def load_blocks(w: Walk, s: ir.LoadBlocks) -> None:
    """All copies of a stage as one."""
    size = w.kernel.buffer(s.smem).stage_bytes * w.threads
    copy = ops.Copy(bar=w.bar(s.barrier, 0), cells=w.cells(s), size=size, stmt=s)
    _issue(w, s, (copy,), None)


def _issue(
    w: Walk, s: ir.TmaLoad | ir.LoadBlocks, copies: tuple[ops.Copy, ...], read: ops.Source | None
) -> None:
    """Loads that follow each other are one operation: nobody can tell the moments between them."""
    last = w.ops[-1] if w.ops else None
    if isinstance(last, ops.Load) and (last.tile, last.k) == (w.tile, w.k):
        w.ops.pop()
        copies = last.copies + copies
        read = last.source or read  # of one tile, the same
        s = last.stmt  # type: ignore[assignment]
    w.add(ops.Load, s, copies=copies, source=read)
