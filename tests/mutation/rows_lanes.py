"""Row 101: A's block scales that the consumers' lanes read."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import edit
from .rows_overlap import WAIT
from .rows_protocol import drop, row, visit

LANES, WAVES = "fp8-lane-scales", "fp8-lane-scales-waves"
SWAPPED = "fp8-lane-scales-swap"  # may begin while the launch before it ends
SPLIT = "fp8-lane-scales-split-k"
FIRST, AHEAD = "lane / 4, kk = min(lane % 4, ", "lane / 4, kk = min(chunk + 4 + lane % 4, "
LAST_ROW = "min(row + 8 * i, shape_m - 1)"
LAST_OF_SHARE = "lane / 4, kk = min(tile.k_first / 128 + lane % 4, (shape_k - 1) / 128)"
OF_ROW, OF_COLUMN = "lane / 4 * 4 + k - chunk", "lane % 4 * 8 + i % 2 * 4 + k - chunk"


def ahead(s: ir.LoadBlockScales) -> ir.LoadBlockScales:
    """The first chunk's in place of the next one's."""
    return replace(s, block=s.block.replace("next", "first"))


ROWS = (
    row("101", LANES, "the first chunk's scales again", "P", ir=visit(ir.LoadBlockScales, ahead, of="rows", block="next")),
    row("101b", SPLIT, "the same, of a CTA's share", "P",
        ir=visit(ir.LoadBlockScales, ahead, of="rows", block="next of group")),
    row("101c", LANES, "the chunk at hand is not taken over", "P", ir=visit(ir.Copy, drop, dst="lane_rows0")),
    row("101d", WAVES, "another wave's rows", "P",
        ir=visit(ir.LoadBlockScales, lambda s: replace(s, wave=1 - s.wave), of="rows")),
    row("101e", LANES, "a chunk late by one", "E", text=edit((AHEAD, AHEAD.replace("chunk + 4", "chunk")))),
    row("101f", LANES, "the scale of the quad's next row", "E",
        text=edit((OF_ROW, OF_ROW.replace("lane / 4", "(lane / 4 ^ 1)")), count=0)),
    row("101g", SWAPPED, "the scale of the pair's other column", "E",
        text=edit((OF_COLUMN, OF_COLUMN.replace("i % 2", "(i + 1) % 2")), count=0)),
    row("101h", LANES, "rows past the last have scales of their own", "E",
        text=edit((LAST_ROW, "(row + 8 * i)"), count=0)),
    row("101i", SWAPPED, "the same of columns of the accumulator", "E",
        text=edit((LAST_ROW, "(row + 8 * i)"), count=0)),
    row("101j", LANES, "K blocks past the last have scales of their own", "E",
        text=edit((f"{FIRST}tile.k_blocks - 1)", f"{FIRST}3)"))),
    row("101k", SPLIT, "the same past the last share", "E",
        text=edit((LAST_OF_SHARE, LAST_OF_SHARE.replace("(shape_k - 1) / 128", "shape_k")))),
    row("101l", SWAPPED, "loaded before the launch before is over, in the text", "E",
        text=edit((WAIT, f"ptx::load_global_float(scale_a);\n{WAIT}"))),
    row("101m", SWAPPED, "what the launch before may write is read as if nobody did", "E",
        text=edit(("ptx::load_global_float(", "__ldg("), count=0)),
)  # fmt: skip
