"""P10 of sums of squares: of every K block once, of the rows that the accumulator has, and added to it once."""

from __future__ import annotations

from dataclasses import replace

from ..ir import nodes as ir
from .reader import SQUARES, WITH_SQUARES, Held, Reader


def of_squares(r: Reader, s: ir.SumSquares | ir.AddSquares) -> None:
    """A K block's are added to those before; all of this CTA's, of the sum's own wave, to the product's sum."""
    if isinstance(s, ir.SumSquares):
        ks = tuple(range(r.first, r.k, r.slices))
        before = Held(what=SQUARES, tile=r.tile, wave=s.wave if ks else None, ks=ks)
        r.want(s, s.dst, before)
        r.registers[s.dst] = replace(before, wave=s.wave, ks=(*ks, r.k))
        return
    held = r.registers.get(s.dst)
    summed = Held(what="sum", tile=r.tile, wave=held.wave if held else None, ks=tuple(r.mine))
    r.want(s, s.dst, summed)
    r.want(s, s.src, replace(summed, what=SQUARES))
    r.registers[s.dst] = replace(summed, what=WITH_SQUARES)
