"""What shares of K that one CTA adds up leave in registers: see values.py."""

from __future__ import annotations

from typing import Any

from ..ir import nodes as ir
from ..ir.dealing import share
from .finding import Finding
from .properties import CARRY_OVER
from .reader import Held, Reader, place

TOTAL = "total"


def begins(r: Reader) -> bool:
    """Whether another share begins with the running K block."""
    if r.ends is None:
        text = f"tile {r.tile} asks where its share ends, which nothing has said"
        r.found.append(Finding(property=CARRY_OVER, message=text))
    return r.k == r.ends


def of_shares(r: Reader, s: Any) -> None:
    match s:
        case ir.Zero():
            for part in range(r.parts):
                r.registers[place(s.dst, part)] = Held(what=TOTAL, tile=r.tile, part=part)
        case ir.TakeShare():
            each = len(share(len(r.mine), 0, r.shares))
            r.first = r.mine.start if s.of == "first" or r.ends is None else r.ends
            r.ends = r.first + each
        case ir.Copy():
            for part in range(r.parts):
                _add(r, s, part)


def _add(r: Reader, s: ir.Copy, part: int) -> None:
    """A share, which is over, and all before it, in order of K."""
    names = place(s.dst, part), place(s.src, part)
    into = r.registers.get(names[0])
    last = into is not None and into.what == "sum"
    sums, totals = names if last else reversed(names)
    end = r.mine.stop if last else r.ends or 0
    if last and end > (r.ends or 0):
        text = f"tile {r.tile} has K blocks after its last share, which ends before {r.ends}"
        r.found.append(Finding(property=CARRY_OVER, message=text))
    found = r.registers.get(sums)
    wave = found.wave if found else None
    mine, before = tuple(range(r.first, end)), tuple(range(r.mine.start, r.first))
    r.want(s, sums, Held(what="sum", tile=r.tile, wave=wave, ks=mine, part=part))
    total = Held(what=TOTAL, tile=r.tile, wave=wave if before else None, ks=before, part=part)
    r.want(s, totals, total)
    what = "sum" if last else TOTAL
    r.registers[names[0]] = Held(what=what, tile=r.tile, wave=wave, ks=before + mine, part=part)
