"""Row 103: operands that warps load straight into registers."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import edit
from .rows_overlap import WAIT
from .rows_protocol import drop, row, visit

DIRECT, SPLIT, HALVES = "dense-direct", "dense-direct-split-k", "fp8-direct"
SLOTS = "dense-direct-slots"
EARLY = "dense-direct-masked"  # may begin while the launch before it ends
ROWS_OF_B = "warp * 16 + lane / 4, kk"
LAST_ROW = "min(row + 8 * i, shape_n - 1)"
END = "kk < tile.k_blocks ? shape_k : 0"
FIRST = "b_0[0], b_0[8], b_0[1], b_0[9]"


def exchanged(s: ir.MultiplyFragments) -> ir.MultiplyFragments:
    return replace(s, row_fragments=s.column_fragments, column_fragments=s.row_fragments)


ROWS = (
    row("103", DIRECT, "the next K block of B is not loaded", "P",
        ir=visit(ir.LoadFragments, drop, tensor="b", block="next")),
    row("103b", DIRECT, "the first K block of A is not loaded", "P",
        ir=visit(ir.LoadFragments, drop, tensor="a", block="first")),
    row("103c", DIRECT, "a K block too far ahead", "P",
        ir=visit(ir.LoadFragments, lambda s: replace(s, distance=s.distance + 1), block="next")),
    row("103d", DIRECT, "fragments stay those of the K block before", "P", ir=visit(ir.Copy, drop, dst="a_0")),
    row("103e", DIRECT, "A's fragments are multiplied as B's", "P", ir=visit(ir.MultiplyFragments, exchanged)),
    row("103f", HALVES, "the partial sum is not zeroed", "P", ir=visit(ir.Zero, drop, dst="part")),
    row("103g", DIRECT, "the row of the next lanes", "E",
        text=edit((ROWS_OF_B, "warp * 16 + (lane / 4 ^ 1), kk"), count=0)),
    row("103h", DIRECT, "rows past B's last are read", "E", text=edit((LAST_ROW, "(row + 8 * i)"), count=0)),
    row("103i", DIRECT, "K blocks past the tile's last are read", "E",
        text=edit((END, "kk <= tile.k_blocks ? 1 << 30 : 0"), count=0)),
    row("103j", SPLIT, "a CTA reads the first one's share", "E", text=edit(("at = tile.k_first + kk", "at = kk"), count=0)),
    row("103k", DIRECT, "the upper rows of a product in the lower ones' place", "E",
        text=edit((FIRST, "b_0[8], b_0[0], b_0[9], b_0[1]"))),
    row("103l", HALVES, "a word's lower half twice", "E", text=edit(("ptx::high_e4m3(", "ptx::low_e4m3("))),
    row("103m", EARLY, "weights are loaded before the launch before is over, in the text", "E",
        text=edit((WAIT, f"int x, y, z, w;\nptx::load_piece(b, 0, 1, x, y, z, w);\n{WAIT}"))),
    row("103n", EARLY, "what the launch before may write is read as if nobody did", "E",
        text=edit(("@inside ld.global.v4", "@inside ld.global.nc.v4"))),
    row("103o", SLOTS, "a K block is read before its copy has come", "P",
        ir=visit(ir.LoadFragments, lambda s: replace(s, pending=s.pending + 1), by="read", tensor="a")),
    row("103p", SLOTS, "the same, in the text", "E", text=edit(("wait_for_copies<4>", "wait_for_copies<6>"), count=0)),
    row("103q", SLOTS, "copies belong to no group", "E", text=edit(("ptx::commit_copies();", ""), count=0)),
    row("103r", SLOTS, "a K block is copied into the next one's place", "P",
        ir=visit(ir.LoadFragments, lambda s: replace(s, distance=s.distance - 1), by="copy", block="next", tensor="b")),
    row("103s", SLOTS, "what was copied is not read", "P", ir=visit(ir.LoadFragments, drop, by="read", tensor="a")),
    row("103t", SLOTS, "a place of another warp's thread is read", "E",
        text=edit(("+ threadIdx.x * 16;", "+ (threadIdx.x ^ 32) * 16;"), after="wait_for_copies<4>")),
    row("103u", SLOTS, "A's place begins in B's", "E", text=edit(("STAGE_BYTES + 8192", "STAGE_BYTES + 6144"), count=0)),
    row("103v", SLOTS, "K blocks past the share are copied", "E", text=edit(("if (kk < tile.k_blocks) {", "{"), count=0)),
)  # fmt: skip
