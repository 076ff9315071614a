"""Row 94: A's rows held in registers."""

from __future__ import annotations

from dataclasses import replace

from test_hold_a import early_load, early_release, in_loop, swapped_fence

from gemmgen.ir import nodes as ir

from .mutant import edit
from .rows_protocol import row, visit

HELD = "fp8_block/held"

ROWS = (
    row("94", HELD, "every warpgroup multiplies the first one's rows", "P",
        ir=visit(ir.LoadFragments, lambda s: replace(s, warpgroup_bytes=0))),
    row("94b", HELD, "every warpgroup multiplies the first one's rows, in the text", "E",
        text=edit((" + 0 + warpgroup * 8192 + row * 128;", " + 0 + row * 128;"))),
    row("94c", HELD, "rows are loaded after the fence that orders their registers", "P", ir=in_loop(swapped_fence)),
    row("94d", HELD, "rows are loaded again while a wgmma reads their registers", "P", ir=in_loop(early_load)),
    row("94e", HELD, "the stage is released before its rows are read", "P", ir=in_loop(early_release)),
    row("94f", HELD, "rows are read where they would lie without a swizzle", "E",
        text=edit((" ^ (row * 128 >> 7 & 7) << 4;", ";"), after="// Lanes 0-15 address rows 0-15 of a warp's 16 rows x 32 bytes")),
    row("94g", HELD, "both halves of 32 bytes from the same chunk", "E",
        text=edit(("lane / 16 * 16 ^", "0 ^"), after="// Lanes 0-15 address rows 0-15 of a warp's 16 rows x 32 bytes")),
    row("94h", HELD, "the second 32 bytes of K are multiplied twice", "E",
        text=edit(("fragments[8], fragments[9], fragments[10], fragments[11], ptx::descriptor", "fragments[4], fragments[5], fragments[6], fragments[7], ptx::descriptor"))),
    row("94i", HELD, "the fourth of each group is the third", "E",
        text=edit(("fragments[2], fragments[3], ptx::descriptor", "fragments[2], fragments[2], ptx::descriptor"))),
)  # fmt: skip
