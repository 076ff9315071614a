"""Row 113: consumer warpgroups that divide a tile's K blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import Change, edit
from .rows_protocol import add, drop, row, twice, visit

SLICES, WAVES, DECODED = "dense-slices", "dense-slices-waves", "w4a16-slices-ends"
Body = tuple[ir.Stmt, ...]
MEET = "ptx::named_barrier_sync<2, 384>();"
BACK = "ring.back((worker + 2 * tile.k_blocks) % 3);"
STEP = "k += 3, ring.skip(3)"


def meetings(change: Callable[[list[int], Body], Body]) -> Change:
    """The tile's statements changed, told where its consumers meet."""

    def tile(s: ir.ForTiles) -> ir.ForTiles:
        at = [i for i, x in enumerate(s.body) if isinstance(x, ir.Sync) and x.of == "consumers"]
        return replace(s, body=change(at, s.body)) if at else s

    return visit(ir.ForTiles, tile, role="consumer")


def without(number: int) -> Change:
    return meetings(lambda at, body: (*body[: at[number]], *body[at[number] + 1 :]))


def added_early(at: list[int], body: Body) -> Body:
    """What adds, before what it adds is there: the sums' meeting after it."""
    first, add = body[at[0]], body[at[0] + 1]
    return (*body[: at[0]], add, first, *body[at[0] + 2 :])


ROWS = (
    row("113", SLICES, "sums are added before they are there", "P", ir=without(0)),
    row("113b", SLICES, "the next tile's sums are written over those that are read", "P", ir=without(1)),
    row("113c", SLICES, "sums are added, then waited for", "P", ir=meetings(added_early)),
    row("113d", SLICES, "each multiplies all K blocks", "P", ir=visit(ir.ForK, lambda s: replace(s, of="tile"), of="slice")),
    row("113e", SLICES, "the others' sums are added twice", "P", ir=visit(ir.AddPartials, twice, through="cta")),
    row("113f", SLICES, "the others' sums are not added", "P", ir=visit(ir.AddPartials, drop, through="cta")),
    row("113g", SLICES, "the others send no sums", "P", ir=visit(ir.SendPartials, drop, through="cta")),
    row("113h", WAVES, "both waves' sums are sent to one place", "P",
        ir=visit(ir.SendPartials, lambda s: replace(s, wave=0), through="cta")),
    row("113i", SLICES, "the ring does not go on behind the tile", "P", ir=visit(ir.RejoinRing, drop)),
    row("113j", SLICES, "the stage before is released, another's", "P",
        ir=visit(ir.Arrive, lambda s: replace(s, lag=1), barrier="empty", lag=3)),
    row("113k", SLICES, "its own stage is released while it is read", "P",
        ir=visit(ir.Arrive, lambda s: replace(s, lag=0), barrier="empty", lag=3)),
    row("113l", SLICES, "a stage is freed by all", "P", ir=visit(ir.InitBarrier, add("arrivals", 8), barrier="empty")),
    row("113m", SLICES, "who has no K blocks adds the sum of the tile before", "P", ir=visit(ir.Zero, drop)),
    row("113n", SLICES, "who has no K blocks releases a stage", "P",
        ir=visit(ir.If, lambda s: s.body, when="has_blocks")),
    row("113o", SLICES, "all store the tile", "P", ir=visit(ir.If, lambda s: s.body, when="first_slice")),
    row("113p", SLICES, "two of three meet", "P",
        ir=visit(ir.Sync, lambda s: replace(s, warpgroups=2), of="consumers")),
    row("113q", SLICES, "they meet where the epilogue's warps do", "P",
        ir=visit(ir.Sync, lambda s: replace(s, first_id=1), of="consumers")),
    row("113r", SLICES, "no sums are waited for, in the text", "E", text=edit((MEET, ""))),
    row("113s", SLICES, "the next tile's sums are written over those that are read, in the text", "E",
        text=edit((MEET, ""), after="acc0[i] += a")),
    row("113t", SLICES, "the ring does not go on behind the tile, in the text", "E", text=edit((BACK, ""))),
    row("113u", SLICES, "the ring goes on a K block early", "E", text=edit((BACK, BACK.replace("(worker +", "1 + (worker +")))),
    row("113v", SLICES, "each takes every second K block", "E", text=edit((STEP, "k += 2, ring.skip(2)"))),
    row("113w", SLICES, "each begins with the tile's first K block", "E",
        text=edit(("ring.skip(worker);", ""), ("int k = worker", "int k = 0"))),
    row("113x", SLICES, "sums of the second are added twice, of the third never", "E",
        text=edit(("smem_partials + other *", "smem_partials + 0 *"))),
    row("113y", SLICES, "sums are written a slot further", "E", text=edit(("(worker - 1) *", "(worker - 0) *"))),
    row("113z", SLICES, "skipping does not turn the phase", "E",
        text=edit(("if (stage >= STAGES) stage -= STAGES, phase ^= 1;", "if (stage >= STAGES) stage -= STAGES;"))),
    row("113aa", SLICES, "going back does not turn the phase", "E",
        text=edit(("if (stage < 0) stage += STAGES, phase ^= 1;", "if (stage < 0) stage += STAGES;"))),
    row("113ab", DECODED, "who has no K blocks adds the sum of the tile before, in the text", "E", text=edit(("r = 0;", "r = r;"))),
)  # fmt: skip
