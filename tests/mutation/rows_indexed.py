"""Row 105: rows of A that come by index, copied into the stages by threads."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.syncs import is_fence, is_sync

from .mutant import edit
from .rows_protocol import drop, row, visit

INDEXED = "fp8-indexed"
ROW = "const int row = first + 16 * i"
WAIT = "ptx::wait_for_copies<2>();"
MET = "ptx::fence_proxy_async();\n                    ptx::warp_sync();"
COPY = "ptx::copy_row_piece("


def told_first(s: ir.If) -> ir.If:
    """Of what stands where a K block's copies should have come: the arrival, then the wait."""
    told = tuple(x for x in s.body if isinstance(x, ir.Arrive))
    return (
        replace(s, body=(*told, *(x for x in s.body if x not in told))) if is_if(s, "begun") else s
    )


def lacking(which):
    return visit(
        ir.If, lambda s: replace(s, body=tuple(x for x in s.body if not which(x))), when="begun"
    )


def early(s: ir.WaitCopies) -> ir.WaitCopies:
    return replace(s, pending=s.pending + 1)


ROWS = (
    row("105", INDEXED, "rows are copied by the tile before's indices", "P", ir=visit(ir.LoadIndices, drop)),
    row("105b", INDEXED, "indices are read from the array of groups' ends", "P",
        ir=visit(ir.LoadIndices, lambda s: replace(s, tensor="group_ends"))),
    row("105c", INDEXED, "the index of the row beside", "E",
        text=edit((ROW, "const int row = (first ^ 1) + 16 * i"))),
    row("105d", INDEXED, "an index is taken for a row", "E",
        text=edit(("/ static_cast<uint32_t>(top)", "/ static_cast<uint32_t>(1)"))),
    row("105e", INDEXED, "one group of copies too few is waited for", "P", ir=visit(ir.WaitCopies, early, pending=2)),
    row("105f", INDEXED, "the same, in the text", "E", text=edit((WAIT, WAIT.replace("2", "3")))),
    row("105g", INDEXED, "a stage is announced before its copies have come", "P", ir=visit(ir.If, told_first)),
    row("105h", INDEXED, "the same, in the text", "E", text=edit((WAIT, ""))),
    row("105i", INDEXED, "what was copied is not ordered before wgmma reads it", "P", ir=lacking(lambda x: is_fence(x, "async"))),
    row("105j", INDEXED, "a lane speaks for those that have not waited", "P", ir=lacking(lambda x: is_sync(x, "warp"))),
    row("105k", INDEXED, "both, in the text", "E", text=edit((MET, ""))),
    row("105l", INDEXED, "the stage after is announced", "P",
        ir=visit(ir.Arrive, lambda s: replace(s, lag=s.lag - 1), to="copied")),
    row("105m", INDEXED, "the last K blocks are not announced", "P",
        ir=visit(ir.If, lambda s: () if isinstance(s.body[0], ir.Arrive) else s, when="begun")),
    row("105n", INDEXED, "of no row, -1, bytes are read", "E", text=edit(("source >= 0 ? bytes : 0", "bytes"))),
    row("105o", INDEXED, "for no row, -1, no zeros are written", "E", text=edit((COPY, f"if (source >= 0) {COPY}"))),
    row("105p", INDEXED, "K past the last is read", "E",
        text=edit(("min(max(shape_k - at, 0) * 1, 16)", "16"))),
    row("105q", INDEXED, "pieces are not swizzled", "E", text=edit(("(piece ^ row % 8) * 16", "piece * 16"))),
    row("105r", INDEXED, "rows from M on have an index", "E",
        text=edit(("row < shape_m ? index : -1", "index"), ("min(row, shape_m - 1)", "row"))),
    row("105s", INDEXED, "an index past A's last row is one of its rows", "E",
        text=edit(("source < static_cast<uint32_t>(sources)", "source < 0xFFFFFFFFu"))),
)  # fmt: skip
