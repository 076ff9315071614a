"""Rows 83 to 86: tiles promoted in two parts of their columns."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import edit
from .rows_protocol import row, visit

PAIRED = "fp8_block/masked_swiglu_fp8"
SUMS = tuple((f"acc0[i + {64 + i}] +=", f"acc0[i + {i}] +=") for i in range(4))


def early(s: ir.ForK) -> ir.ForK:
    """Of the loop that releases stages: the release before the wait that it follows."""
    body = list(s.body)
    for i, x in enumerate(body):
        if isinstance(x, ir.Arrive):
            body[i - 1 : i + 1] = x, body[i - 1]
    return replace(s, body=tuple(body))


ROWS = (
    row("83", PAIRED, "the second part reads the first's columns of B", "P",
        ir=visit(ir.Mma, lambda s: replace(s, part_bytes=0))),
    row("83b", PAIRED, "the first part is multiplied twice", "P",
        ir=visit(ir.Mma, lambda s: replace(s, part=0, part_bytes=0))),
    row("83c", PAIRED, "the second part reads the first's columns of B, in the text", "E",
        text=edit(("+ 16384, B_DESCRIPTOR_LOW", ", B_DESCRIPTOR_LOW"))),
    row("84", PAIRED, "the second part is promoted into the first's registers", "P",
        ir=visit(ir.Promote, lambda s: replace(s, part=0))),
    row("84b", PAIRED, "the second part is promoted into the first's registers, in the text", "E", text=edit(*SUMS)),
    row("85", PAIRED, "the second part takes the first block's scale", "P",
        ir=visit(ir.Promote, lambda s: replace(s, block=0))),
    row("85b", PAIRED, "the second part takes the first block's scale, in the text", "E",
        text=edit(("* block_scales[1]", "* block_scales[0]"), count=0)),
    row("85c", PAIRED, "each part takes the other's scale", "P",
        ir=visit(ir.Promote, lambda s: replace(s, block=1 - s.block))),
    row("86", PAIRED, "the stage is released before the last part is waited for", "P", ir=visit(ir.ForK, early)),
    row("86b", PAIRED, "the second part is promoted before it is waited for", "P",
        ir=visit(ir.ForK, lambda s: replace(s, body=tuple(
            x for i, x in enumerate(s.body)
            if not (isinstance(x, ir.WgmmaWait) and isinstance(s.body[i + 1], ir.Arrive)))))),
)  # fmt: skip
