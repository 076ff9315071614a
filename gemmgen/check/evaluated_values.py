"""What an epilogue evaluates, and stores from registers, on names instead of numbers: see values.py."""

from __future__ import annotations

from ..ir import nodes as ir
from .reader import Reader


def of_values(r: Reader, s: ir.Evaluate | ir.StoreValues) -> None:
    match s:
        case ir.Evaluate(of="argument"):
            r.registers[s.dst] = r.argument(s.value, s.wave)
        case ir.Evaluate():
            r.want_held(s)
            r.want_sum(s, s.src, s.wave)
            r.registers[s.dst] = r.whole("values", s.wave)
        case ir.StoreValues(of="sums" | "window"):
            r.want_held(s)
            r.want(s, s.src, r.whole(r.staged, s.wave))
        case _:
            r.want_none(s)
