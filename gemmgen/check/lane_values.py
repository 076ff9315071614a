"""What registers hold of scales that lanes load and share: see values.py."""

from __future__ import annotations

from dataclasses import replace

from ..ir import nodes as ir
from .reader import Held, Reader

OF_LANES = {
    "columns": "block scales of a chunk, one K block's per lane",
    "waves": "block scales of a chunk, one K block's per lane",
    "rows": "row scales of a chunk, a lane's of a row and a K block",
    "all_rows": "column scales of a chunk, a lane's of a column and a K block",
}
# By which lanes' scales are shared: whose they may be, and what they are then.
SHARED = {
    "block": ((OF_LANES["columns"], OF_LANES["waves"]), "block scales"),
    "rows": ((OF_LANES["rows"],), "row scales"),
    "columns": ((OF_LANES["all_rows"],), "column scales"),
}


def share_scales(r: Reader, s: ir.ShareScales) -> None:
    """A lane beyond the last that has a K block of its own is the one that many after the first."""
    held, lane = r.registers.get(s.src), r.k - r.chunk.start
    found = Held(what="rubbish", tile=r.tile)
    whose, shared = SHARED[s.of]
    if held and held.what in whose:
        found = replace(held, what=shared, ks=(held.ks[lane % len(held.ks)],))
    r.registers[s.dst] = found
