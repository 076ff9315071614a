"""Row 120: sums of squares of A's rows beside the product."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import edit
from .rows_protocol import row, visit

SQUARES = "dense-squares"


def late(kernel: ir.Kernel) -> ir.Kernel:
    """They are read behind the products, before the wait for those."""

    def moved(s: ir.ForK) -> ir.ForK:
        sums = tuple(x for x in s.body if isinstance(x, ir.SumSquares))
        body = tuple(x for x in s.body if x not in sums)
        at = next((i + 1 for i, x in enumerate(body) if isinstance(x, ir.WgmmaCommit)), 0)
        return replace(s, body=(*body[:at], *sums, *body[at:]))

    return visit(ir.ForK, moved)(kernel)


ROWS = (
    row("120", SQUARES, "the squares of no K block", "P", ir=visit(ir.SumSquares, lambda s: ())),
    row("120b", SQUARES, "each K block's twice", "P", ir=visit(ir.SumSquares, lambda s: (s, s))),
    row("120c", SQUARES, "both waves' are the first one's", "P", ir=visit(ir.SumSquares, lambda s: replace(s, wave=0))),
    row("120d", SQUARES, "they go into no sum", "P", ir=visit(ir.AddSquares, lambda s: ())),
    row("120e", SQUARES, "the next tile goes on with this one's", "P",
        ir=visit(ir.Zero, lambda s: () if s.dst.startswith("squares") else s)),
    row("120f", SQUARES, "the last column stays with D", "P",
        ir=visit(ir.StoreTail, lambda s: replace(s, tensor="d", own=False))),
    row("120g", "dense-squares-shared", "read behind the products, where another CTA fills the stage", "P", ir=late),
    row("120h", SQUARES, "a piece of a row twice, the next never", "E", text=edit(("lane % 4 * 2 + i % 2) ^", "lane % 4 * 2) ^"), count=0)),
    row("120i", SQUARES, "one half of each pair", "E", text=edit((" += low * low", " += high * high"), count=0)),
    row("120j", SQUARES, "the column before", "E", text=edit(("+ i % 2 == shape_n - 2", "+ i % 2 == shape_n - 4"), count=0)),
    row("120k", SQUARES, "upper and lower rows exchanged", "E", text=edit(("lower : upper", "upper : lower"), count=0)),
    row("120l", SQUARES, "one lane's sum for its quad's", "E", text=edit(("ptx::quad_sum(squares", "(squares"), count=0)),
)  # fmt: skip
