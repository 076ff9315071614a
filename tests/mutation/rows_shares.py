"""Row 104: one CTA that adds up the shares of K that a cluster would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import Change, edit
from .rows_protocol import drop, row, twice, visit

LATE, PLAIN, WAVES = "dense-shares", "fp8-shares", "fp8-1d1d-shares-waves"
Body = tuple[ir.Stmt, ...]


def between(change: Callable[[Body], Body]) -> Change:
    """What stands where a share begins, changed."""
    return visit(ir.If, lambda s: replace(s, body=change(s.body)), when="new_share")


def without(kind: type[ir.Stmt]) -> Change:
    return between(lambda body: tuple(s for s in body if not isinstance(s, kind)))


def other_wave(s: ir.Copy) -> ir.Copy:
    return replace(s, src={"acc0": "acc1", "acc1": "acc0"}.get(s.src, s.src))


ROWS = (
    row("104", PLAIN, "a share's sum is not cleared", "P", ir=without(ir.Zero)),
    row("104b", PLAIN, "a share's sum is not added", "P", ir=without(ir.Copy)),
    row("104c", PLAIN, "a share's sum is cleared, then added", "P", ir=between(lambda body: (*body[1:], body[0]))),
    row("104d", PLAIN, "the last share is stored without the others", "P", ir=visit(ir.Copy, drop, dst="acc0")),
    row("104e", PLAIN, "the others are added to the last share twice", "P", ir=visit(ir.Copy, twice, dst="acc0")),
    row("104f", PLAIN, "the total goes on from the tile before", "P", ir=visit(ir.Zero, drop, of="total")),
    row("104g", PLAIN, "where the next share ends is not noted", "P", ir=without(ir.TakeShare)),
    row("104h", PLAIN, "all of K is one share", "P", ir=visit(ir.If, drop, when="new_share")),
    row("104i", WAVES, "another wave's share is added", "P", ir=visit(ir.Copy, other_wave, by="adding")),
    row("104j", LATE, "a share is added while it is multiplied", "P", ir=without(ir.WgmmaWait)),
    row("104k", LATE, "the same, in the text", "E", text=edit(("ptx::wgmma_wait<0>();", ""), after="share_end[0]) {")),
    row("104l", PLAIN, "a share's sum is not cleared, in the text", "E", text=edit(("r = 0;", "r = r;"), after="share_end[0]) {")),
    row("104m", PLAIN, "the last share is stored without the others, in the text", "E",
        text=edit(("acc0[i] += total0[i];", "acc0[i] += 0 * total0[i];"))),
    row("104n", PLAIN, "the total begins with 1", "E", text=edit(("-0.0f : 0.0f", "1.0f : 1.0f"))),
    row("104o", WAVES, "shares are rounded down", "N",
        text=edit(("(tile.k_blocks + 7) / 8", "max(1, tile.k_blocks / 8)"), count=0)),
    row("104p", WAVES, "shares begin a K block late", "N", text=edit(("k == share_end[0]", "k == share_end[0] + 1"))),
)  # fmt: skip
