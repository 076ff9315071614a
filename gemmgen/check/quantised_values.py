"""What registers hold of an output with scales: see values.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..ir import nodes as ir
from .reader import Held, Reader

RAISED, OF_WARP, MAXIMA = "maxima of a thread", "maxima of warps", "maxima"


Quantising = ir.RowAmax | ir.ShareAmax | ir.TakeAmax | ir.Normalise | ir.StoreScales


def quantise(r: Reader, s: Quantising) -> None:
    """A wave by itself, or all of a tile's where 128 columns of D are rows of the accumulator."""
    (_of_rows if getattr(s, "of", "columns") == "rows" else _of_columns)(r, s)


def _of_rows(r: Reader, s: Any) -> None:
    match s:
        case ir.RowAmax():
            held = r.registers.get(s.src)
            wave = held.wave if held and held.wave is not None else 0
            r.want(s, s.src, r.whole("values", wave))
            r.registers[s.dst] = r.whole("maxima", wave)
        case ir.StoreScales():
            r.want(s, s.src, r.whole("maxima", s.wave))
        case ir.Normalise():
            held = r.registers.get(s.dst)
            wave = held.wave if held and held.wave is not None else 0
            r.want(s, s.dst, r.whole("values", wave))
            r.want(s, s.amax, r.whole("maxima", wave))
            r.registers[s.dst] = r.whole("quotients", wave)


def _of_columns(r: Reader, s: Any) -> None:
    """Maxima name their waves where others name K blocks: of all that there are, before a value is scaled."""
    match s:
        case ir.RowAmax():
            r.want(s, s.src, r.whole("values", s.wave))
            before, cleared = r.registers.get(s.dst), Held(what=RAISED, tile=r.tile)
            if before is None or (before.what, before.tile) != (RAISED, r.tile):
                r.fail(s, s.dst, cleared)
                before = cleared
            r.registers[s.dst] = replace(before, ks=(*before.ks, s.wave))
        case ir.ShareAmax():
            r.want(s, s.src, _all(r, RAISED))
            r.registers[_place(s)] = _all(r, OF_WARP)
        case ir.TakeAmax():
            r.want(s, _place(s), _all(r, OF_WARP))
            r.registers[s.dst] = _all(r, MAXIMA)
        case ir.StoreScales():
            r.want(s, s.src, _all(r, MAXIMA))
        case ir.Normalise():
            held = r.registers.get(s.dst)
            wave = held.wave if held and held.wave is not None else 0
            r.want(s, s.dst, r.whole("values", wave))
            r.want(s, s.amax, _all(r, MAXIMA))
            r.registers[s.dst] = r.whole("quotients", wave)


def _place(s: ir.ShareAmax | ir.TakeAmax) -> str:
    return f"all of {s.smem}"


def _all(r: Reader, what: str) -> Held:
    return Held(what=what, tile=r.tile, ks=tuple(range(r.waves)))


def clear(r: Reader, name: str) -> None:
    """Maxima of no wave yet."""
    r.registers[name] = Held(what=RAISED, tile=r.tile)
