"""Row 116: D whose columns have gaps."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.heads import NO_GAPS, Heads
from gemmgen.ir.rewrite import map_stmts

from .mutant import edit
from .rows_protocol import row, visit

GAPS = "fp8-heads"
SECOND = "(tile.d_col + 64 + 128) / 256"


def in_heads(heads: Heads):
    """Stores placed as in others."""
    return visit(
        ir.TmaStore,
        lambda s: replace(s, coords=(replace(s.coords[0], heads=heads), *s.coords[1:])),
    )


def of_others(kernel: ir.Kernel) -> ir.Kernel:
    """Heads of half a box, of the map too."""
    heads = Heads(left=32, mid=64, right=32)
    maps = tuple(replace(m, heads=heads) if m.tensor == "d" else m for m in kernel.maps)
    return replace(in_heads(heads)(kernel), maps=maps)


def with_tails(kernel: ir.Kernel) -> ir.Kernel:
    tail = ir.StoreTail(tensor="d", smem="smem_d", wave=0)

    def change(s: ir.Stmt):
        last = is_if(s, "leader") and isinstance(s.body[-1], ir.StoreCommit)
        return (s, tail) if last else s

    return map_stmts(kernel, change)


ROWS = (
    row("116", GAPS, "columns are stored as if there were no gaps", "P", ir=in_heads(NO_GAPS)),
    row("116b", GAPS, "gaps begin 64 columns early", "P", ir=in_heads(Heads(left=64, mid=64, right=192))),
    row("116c", GAPS, "gaps of twice the width", "P", ir=in_heads(Heads(left=128, mid=128, right=128))),
    row("116d", GAPS, "boxes lie over gaps", "P", ir=of_others),
    row("116e", GAPS, "a tail is stored that knows no gaps", "P", ir=with_tails),
    row("116f", GAPS, "gaps lie behind whole heads, in the text", "E", text=edit((" + 128) / 256", ") / 256"), count=0)),
    row("116g", GAPS, "the same of a tile's second box", "E", text=edit((SECOND, SECOND.replace(" + 128", "")))),
    row("116h", GAPS, "the second box has the first one's gap", "E", text=edit((SECOND, "(tile.d_col + 128) / 256"))),
    row("116i", GAPS, "gaps of half the width, in the text", "E", text=edit((" / 256 * 64", " / 256 * 32"), count=0)),
    row("116j", GAPS, "D's map ends where the product's columns would", "E",
        describe=("d", lambda d: replace(d, dims=(d.dims[0] // 320 * 256, *d.dims[1:])))),
)  # fmt: skip
