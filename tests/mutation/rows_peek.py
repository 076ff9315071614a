"""Row 98: consumers that look at the next stage before they wait for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import Change, edit
from .rows_protocol import drop, row, visit

PEEK, WAVES, LATE = "fp8-peek", "fp8-1d1d-peek-k_flat", "dense-peek"
LOOK = "ptx::mbarrier_test_wait(full + 8 * next.stage, next.phase)"
WAIT = "if (seen[0] == 0) ptx::mbarrier_wait(full"


def moved(put: Callable[[ir.ForK, ir.Peek], tuple[ir.Stmt, ...]]) -> Change:
    """The peek elsewhere: `put` says what the K loop becomes without it."""

    def change(s: ir.ForK) -> tuple[ir.Stmt, ...] | ir.ForK:
        found = [x for x in s.body if isinstance(x, ir.Peek)]
        if not found:
            return s
        rest = tuple(x for x in s.body if x is not found[0])
        return put(replace(s, body=rest), found[0])

    return visit(ir.ForK, change)


ROWS = (
    row("98", PEEK, "what was seen is not set before the first stage", "P", ir=visit(ir.Zero, drop, dst="seen")),
    row("98b", PEEK, "the peek is at the barrier of free stages", "P",
        ir=visit(ir.Peek, lambda s: replace(s, barrier="empty"))),
    row("98c", PEEK, "the peek comes before the wait", "P",
        ir=moved(lambda s, peek: (replace(s, body=(peek, *s.body)),))),
    row("98d", LATE, "the same where a stage is released late", "P",
        ir=moved(lambda s, peek: (replace(s, body=(peek, *s.body)),))),
    row("98e", WAVES, "one peek per tile", "S", ir=moved(lambda s, peek: (s, peek))),
    row("98f", PEEK, "no wait where nothing was seen", "P", ir=visit(ir.Wait, drop, seen="seen")),
    row("98g", PEEK, "the peek is at the K block's own stage", "E", text=edit((LOOK, LOOK.replace("next.", "ring.")))),
    row("98h", PEEK, "the peek is at the phase before", "E", text=edit(("next.phase)", "next.phase ^ 1)"))),
    row("98i", PEEK, "the phase is not that of the stage", "E", text=edit(("next.phase)", "ring.phase)"))),
    row("98j", PEEK, "it waits only for what was seen", "E", text=edit(("seen[0] == 0", "seen[0] != 0"))),
    row("98k", PEEK, "it never waits", "E", text=edit((WAIT, "(void)(full"), ("ring.stage, ring.phase);", "ring.stage + ring.phase);"))),
    row("98l", WAVES, "everything counts as seen", "E", text=edit(("selp.u32 %0, 1, 0, done", "selp.u32 %0, 1, 1, done"))),
)  # fmt: skip
