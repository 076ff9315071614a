"""Row 94: A's rows held in registers."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import edit
from .rows_protocol import row, visit

HELD = "fp8_block/held"


def swapped_fence(s: ir.ForK) -> ir.ForK:
    """The load after the fence that orders its registers."""
    at = next(i for i, x in enumerate(s.body) if isinstance(x, ir.LoadFragments))
    body = (*s.body[:at], s.body[at + 1], s.body[at], *s.body[at + 2 :])
    return replace(s, body=body)


def early_load(s: ir.ForK) -> ir.ForK:
    """The load for the second part while the first's wgmma runs."""
    load = next(x for x in s.body if isinstance(x, ir.LoadFragments))
    at = next(i for i, x in enumerate(s.body) if isinstance(x, ir.WgmmaWait))
    return replace(s, body=(*s.body[:at], load, *s.body[at:]))


def early_release(s: ir.ForK) -> ir.ForK:
    """The stage released before its rows were read."""
    release = next(x for x in s.body if isinstance(x, ir.Arrive | ir.ArriveCluster))
    rest = [x for x in s.body if x is not release]
    at = next(i for i, x in enumerate(rest) if isinstance(x, ir.LoadFragments))
    return replace(s, body=(*rest[:at], release, *rest[at:]))


ROWS = (
    row("94", HELD, "every warpgroup multiplies the first one's rows", "P",
        ir=visit(ir.LoadFragments, lambda s: replace(s, warpgroup_bytes=0))),
    row("94b", HELD, "every warpgroup multiplies the first one's rows, in the text", "E",
        text=edit((" + 0 + warpgroup * 8192 + row * 128;", " + 0 + row * 128;"))),
    row("94c", HELD, "rows are loaded after the fence that orders their registers", "P", ir=visit(ir.ForK, swapped_fence, role="consumer")),
    row("94d", HELD, "rows are loaded again while a wgmma reads their registers", "P", ir=visit(ir.ForK, early_load, role="consumer")),
    row("94e", HELD, "the stage is released before its rows are read", "P", ir=visit(ir.ForK, early_release, role="consumer")),
    row("94f", HELD, "rows are read where they would lie without a swizzle", "E",
        text=edit((" ^ (row * 128 >> 7 & 7) << 4;", ";"), after="// Lanes 0-15 address rows 0-15 of a warp's 16 rows x 32 bytes")),
    row("94g", HELD, "both halves of 32 bytes from the same chunk", "E",
        text=edit(("lane / 16 * 16 ^", "0 ^"), after="// Lanes 0-15 address rows 0-15 of a warp's 16 rows x 32 bytes")),
    row("94h", HELD, "the second 32 bytes of K are multiplied twice", "E",
        text=edit(("fragments[8], fragments[9], fragments[10], fragments[11], ptx::descriptor", "fragments[4], fragments[5], fragments[6], fragments[7], ptx::descriptor"))),
    row("94i", HELD, "the fourth of each group is the third", "E",
        text=edit(("fragments[2], fragments[3], ptx::descriptor", "fragments[2], fragments[2], ptx::descriptor"))),
)  # fmt: skip
