"""Row 102: sums that copy engines send to other GPUs."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import edit
from .rows_protocol import drop, row, visit

OUTBOX = "dense-outbox"
LAST, COUNT = " * 4 - 1;", "ptx::count_up(partials[(rank + ranks - owed[0])"
RAISED, OFFSET = "owed[1] / parcel_tiles), epoch);", "owed[1] / parcel_tiles) + 64, last)"
AWAITED = "tile.slot / parcel_tiles);"


def counted_first(s: ir.If) -> ir.If:
    """A warp notes its tile's parcel, counts itself, then stores its sums."""
    *sent, noted = s.body
    return replace(s, body=(noted, ir.Signal(by="counting", owed="owed"), *sent))


def added_first(s: ir.If) -> ir.If:
    wait, add, *rest = s.body
    return replace(s, body=(add, wait, *rest))


ROWS = (
    row(
        "102",
        OUTBOX,
        "no warp counts itself in its parcel",
        "P",
        ir=visit(ir.If, drop, when="owes"),
    ),
    row(
        "102b",
        OUTBOX,
        "a warp counts itself before its sums are in the outbox",
        "P",
        ir=visit(ir.If, counted_first, when="theirs"),
    ),
    row(
        "102c",
        OUTBOX,
        "a warp raises a flag instead",
        "P",
        ir=visit(ir.Signal, lambda s: replace(s, by="raising"), by="counting"),
    ),
    row("102d", OUTBOX, "owners do not wait for parcels", "P", ir=visit(ir.AwaitSignals, drop)),
    row("102e", OUTBOX, "owners add, then wait", "P", ir=visit(ir.If, added_first, when="ours")),
    row(
        "102f",
        OUTBOX,
        "the outbox has one buffer",
        "P",
        ir=lambda k: replace(k, peers=replace(k.peers, buffers=1)),
    ),
    row(
        "102g",
        OUTBOX,
        "owners wait for the flags of warps",
        "P",
        ir=visit(ir.AwaitSignals, lambda s: replace(s, of="sums")),
    ),
    row(
        "102h",
        OUTBOX,
        "the count orders nothing",
        "E",
        text=edit(("atom.acq_rel.gpu", "atom.relaxed.gpu")),
    ),
    row(
        "102i",
        OUTBOX,
        "the count releases only",
        "E",
        text=edit(("atom.acq_rel.gpu", "atom.release.gpu")),
    ),
    row(
        "102j",
        OUTBOX,
        "a parcel leaves when all warps but one have counted themselves",
        "E",
        text=edit((LAST, " * 4 - 2;")),
    ),
    row("102k", OUTBOX, "a parcel waits for one warp more", "E", text=edit((LAST, " * 4;"))),
    row(
        "102l",
        OUTBOX,
        "the flag of the next parcel is raised",
        "E",
        text=edit((RAISED, "owed[1] / parcel_tiles + 1), epoch);")),
    ),
    row(
        "102m",
        OUTBOX,
        "the flag of the launch before is raised",
        "E",
        text=edit((RAISED, "owed[1] / parcel_tiles), epoch - 1);")),
    ),
    row(
        "102n",
        OUTBOX,
        "parcels are counted where their flags are",
        "E",
        text=edit((OFFSET, "owed[1] / parcel_tiles) + 0, last)")),
    ),
    row(
        "102o",
        OUTBOX,
        "all parcels are counted in one place",
        "E",
        text=edit((OFFSET, "0) + 64, last)")),
    ),
    row(
        "102p",
        OUTBOX,
        "the flag of the first parcel is awaited",
        "E",
        text=edit((AWAITED, "0 * tile.slot);")),
    ),
    row("102q", OUTBOX, "the counted tile is noted for ever", "E", text=edit(("owed[0] = 0;", ""))),
)
