"""What cells hold in the canonical schedule, and who reads something else than meant there."""

from __future__ import annotations

from . import ops
from .finding import Finding, Place, when
from .history import UNWRITTEN, Access, Run
from .properties import CARRY_OVER


def fetch(r: Run, place: Place, source: ops.Source, copy: tuple[int, int]) -> None:
    """A copy reads what others have written: until its bytes have landed."""
    agent, at = place
    r.accesses.append(
        Access(agent=agent, at=at, cells=source.cells, writes=False, generic=False, copy=copy)
    )
    for cell in source.cells:
        if r.content[cell] != (source.rows, ops.OUTSIDE) and not r.stale:
            r.stale.append(stale(r, place, cell))


def stale(r: Run, place: Place, cell: int) -> Finding:
    op = r.program.ops[place[0]][place[1]]
    tile, k = r.content[cell]
    held = f"the bytes of tile {tile}" + (f", K block {k}" if k >= 0 else "")
    if (tile, k) == UNWRITTEN:
        held = "nothing that this kernel wrote"
    text = f"{r.program.cells[cell]} holds {held} when {when(op) or 'its reader'} reads it"
    return Finding(property=CARRY_OVER, message=text, places=(place,))
