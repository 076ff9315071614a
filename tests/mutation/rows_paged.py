"""Rows 118 and 119: rows of B that come by page, windows of several groups, and what a sum of rows is stored from."""

from __future__ import annotations

from dataclasses import replace

from kernels import reads_rows

from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if

from .mutant import edit
from .rows_protocol import drop, row, visit

PAGED = "logits-paged"
PAGE = "min(tile.b_row / 64 + i, (shape_n - 1) / 64)"


def of_page(change):
    return visit(ir.TmaLoad, lambda s: change(s) if s.pages else s)


def beside(s: ir.TmaLoad) -> ir.TmaLoad:
    number = replace(s.coords[2], offset=1 - s.coords[2].offset)
    return replace(s, coords=(*s.coords[:2], number))


def lower(s: ir.TmaLoad) -> ir.TmaLoad:
    return replace(s, coords=(s.coords[0], replace(s.coords[1], offset=8), s.coords[2]))


def fewer(s: ir.LoadPages) -> ir.LoadPages:
    return replace(s, count=s.count - 1)


ROWS = (
    row("118", PAGED, "the pages of the tile before", "P", ir=visit(ir.LoadPages, drop)),
    row("118b", PAGED, "the page beside", "P", ir=of_page(beside)),
    row("118c", PAGED, "a page from its ninth row on", "P", ir=of_page(lower)),
    row("118d", PAGED, "the last page's number is not read", "P", ir=visit(ir.LoadPages, fewer)),
    row("118e", PAGED, "the first page of the tile for all", "E", text=edit((PAGE, PAGE.replace(" + i", "")))),
    row("118f", PAGED, "the first group's pages", "E", text=edit(("pages + (long long)tile.group * pages_stride +", "pages +"))),
    row("118g", PAGED, "the scales of the page beside", "E", text=edit(("numbers + column / 64", "numbers + (column / 64 ^ 1)"))),
    row("118h", PAGED, "scales as if pages lay in order", "E", text=edit(("x + number * pitch", "x + column / 64 * pitch"))),
    row("118i", PAGED, "the first group's windows, of tiles", "E", text=edit(("group * rows + m * ROWS", "m * ROWS"))),
    row("118j", PAGED, "windows of the first tile's rows for all", "E", text=edit(("reach(group * rows + m * ROWS,", "reach(group * rows,"))),
    row("118k", PAGED, "the first group's windows, of elements", "E",
        text=edit(("arg_window_end + (long long)tile.group * (shape_m / 32)", "arg_window_end"))),
    row("119", PAGED, "what rows are given is never read", "P", ir=visit(ir.Evaluate, lambda s: () if reads_rows(s) else s)),
    row("119b", PAGED, "what rows are given is read where nothing comes", "P", ir=visit(ir.Evaluate, lambda s: ir.If(when="no_blocks", body=(s,)) if reads_rows(s) else s)),
    row("119c", PAGED, "tiles that no window reaches stay as they were", "P", ir=visit(ir.If, lambda s: () if is_if(s, "no_blocks") else s)),
    row("119d", PAGED, "only a CTA's first run reads what its rows are given", "E",
        text=edit(("for (Tile tile; scheduler.begin(tile);) {\n            {", "for (Tile tile; scheduler.begin(tile);) {\n            if (scheduler.index < 2 * scheduler.stride) {"))),
    row("119e", PAGED, "a run's last tile is left out", "E", text=edit(("left = min(run, whole_n - n * run)", "left = max(1, min(run, whole_n - n * run) - 1)"))),
    row("119f", PAGED, "the two halves of a warp's columns are exchanged", "E", text=edit(("warp * 16 + lane % 2 * 8 + lane / 4;", "warp * 16 + (lane + 1) % 2 * 8 + lane / 4;"))),
    row("119g", PAGED, "a tile that no window reaches is zeros", "E", text=edit(("= __uint_as_float(0xff800000);", "= 0;"))),
)  # fmt: skip
