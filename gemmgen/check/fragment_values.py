"""What registers hold of operands that come straight from global memory, or by way of a thread's places: see values.py."""

from __future__ import annotations

from ..ir import nodes as ir
from .reader import Held, Reader


def load_fragments(r: Reader, s: ir.LoadFragments) -> None:
    """Into registers; or into a place, of which there are as many as stages, and from there, if the group has come."""
    k = (r.mine.start if s.block == "first" else r.k) + s.distance
    held = Held(what=f"fragments of {s.of}", tile=r.tile, ks=(k,))
    if s.by == "load":
        r.registers[s.dst] = held
        return
    place = f"{s.smem}, {s.of}, {(k - r.mine.start) % r.stages}"
    if s.by == "copy":
        if k in r.mine:
            r.registers[place], r.came[place] = held, r.groups
        r.groups += 1
        return
    late = r.came.get(place, r.groups) >= r.groups - s.pending
    r.registers[s.dst] = Held(what="rubbish", tile=r.tile) if late else r.registers[place]


def multiply_fragments(r: Reader, s: ir.MultiplyFragments) -> None:
    r.want(s, s.row_fragments, r.now("fragments of rows"))
    r.want(s, s.column_fragments, r.now("fragments of columns"))
    if s.dst in r.partial:
        r.want(s, s.dst, Held(what="sum", tile=r.tile))
        r.registers[s.dst] = r.now("product", 0)
    else:
        r.add(s, s.dst, 0)
