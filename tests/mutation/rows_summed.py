"""Row 117: tiles that sum all groups, one group's K blocks after the other's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import edit
from .rows_protocol import row, visit

SUMMED, SPLIT = "dense-summed", "dense/summed"
DEPTH = "(shape_k + BLOCK_K - 1) / BLOCK_K * BLOCK_K"


def placed(which: str, **changes: object) -> Callable[[ir.TmaLoad], ir.TmaLoad]:
    """The coordinates along K that say this of a group, changed."""

    def change(s: ir.TmaLoad) -> ir.TmaLoad:
        return replace(
            s, coords=tuple(replace(c, **changes) if c.of == which else c for c in s.coords)
        )

    return change


ROWS = (
    row("117", SUMMED, "K counts on through all groups", "P", ir=visit(ir.TmaLoad, placed("depth", of=""))),
    row("117b", SUMMED, "the group is where K is in it", "P", ir=visit(ir.TmaLoad, placed("group", of="depth"))),
    row("117c", SPLIT, "every CTA begins in the first group", "P", ir=visit(ir.TmaLoad, placed("group", start=""))),
    row("117d", SUMMED, "K blocks count as one of K", "P", ir=visit(ir.TmaLoad, placed("depth", scale=1))),
    row("117e", SUMMED, "a K block has K of two groups", "E", text=edit((DEPTH, "shape_k"))),
    row("117f", SUMMED, "the last group is not summed", "E", text=edit(("depth * groups", "depth * (groups - 1)"))),
    row("117g", SUMMED, "only the first group is summed", "E", text=edit(("depth * groups", "depth"))),
    row("117h", SUMMED, "B of the group before", "E",
        text=edit(("(k * 64) / depth", "max((k * 64) / depth - 1, 0)"), after="&map_b")),
    row("117i", SPLIT, "every CTA's share begins where a group does", "E",
        text=edit(("(tile.k_first + k * 64) % depth", "(k * 64) % depth"), count=0)),
    row("117j", SUMMED, "groups lie without the rows between them", "E",
        describe=("a", lambda d: replace(d, strides=(d.strides[0], d.strides[0] * d.dims[1])))),
)  # fmt: skip
