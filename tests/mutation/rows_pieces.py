"""Row 95: one piece of a K block promoted while the next is multiplied."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir
from gemmgen.ir.promotion import PROMOTION

from .mutant import edit
from .rows_protocol import row, visit

OVERLAPPED = "fp8_1d1d/overlapped"


def undrained(s: ir.ForK) -> ir.ForK:
    """The last piece promoted while its wgmma run."""
    return replace(s, body=tuple(_one_left(x) for x in s.body))


def _one_left(s: ir.Stmt) -> ir.Stmt:
    return replace(s, pending=1) if isinstance(s, ir.WgmmaWait) else s


def early_release(s: ir.ForK) -> ir.ForK:
    """The stage released while the last piece still reads it."""
    release = next(x for x in s.body if isinstance(x, ir.Arrive))
    rest = [x for x in s.body if x is not release]
    at = next(i for i, x in enumerate(rest) if isinstance(x, PROMOTION))
    return replace(s, body=(*rest[:at], release, *rest[at:]))


def one_sum(s: ir.ForK) -> ir.ForK:
    """Both pieces into the first partial sum."""
    return replace(s, body=tuple(_first(x) for x in s.body))


def _first(s: ir.Stmt) -> ir.Stmt:
    if isinstance(s, ir.Mma):
        return replace(s, dst="part0")
    return replace(s, src="part0") if isinstance(s, PROMOTION) else s


def exchanged_sums(s: ir.ForK) -> ir.ForK:
    """Each piece promoted from the other's sum."""
    other = {"part0": "part1", "part1": "part0"}
    promoted = (replace(x, src=other[x.src]) if isinstance(x, PROMOTION) else x for x in s.body)
    return replace(s, body=tuple(promoted))


ROWS = (
    row("95", OVERLAPPED, "the last piece is promoted while its wgmma run", "P", ir=visit(ir.ForK, undrained, role="consumer")),
    row("95b", OVERLAPPED, "the stage is released while the last piece is multiplied", "P", ir=visit(ir.ForK, early_release, role="consumer")),
    row("95c", OVERLAPPED, "both pieces are summed in the same registers", "P", ir=visit(ir.ForK, one_sum, role="consumer")),
    row("95d", OVERLAPPED, "each piece is promoted from the other's sum", "P", ir=visit(ir.ForK, exchanged_sums, role="consumer")),
    row("95e", OVERLAPPED, "row scales of the two waves are exchanged", "P",
        ir=visit(ir.LoadRowScales, lambda s: replace(s, wave=1 - s.wave))),
    row("95f", OVERLAPPED, "nothing is waited for between the pieces", "P",
        ir=visit(ir.WgmmaWait, lambda s: replace(s, pending=2) if s.pending else s)),
    row("95g", OVERLAPPED, "an element of the first piece is promoted in the second, in the text", "E",
        text=edit(("column_scales[i / 2 + 1] * part1[i + 3]", "column_scales[i / 2 + 1] * part0[i + 3]"))),
)  # fmt: skip
