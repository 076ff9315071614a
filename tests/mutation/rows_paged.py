"""Row 118: rows of B that come by page, and windows of several groups."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir

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
    row("118j", PAGED, "windows of the first tile's rows for all", "E", text=edit(("if (from != known)", "if (known < 0)"))),
    row("118k", PAGED, "the first group's windows, of elements", "E",
        text=edit(("arg_window_end + (long long)tile.group * (shape_m / 32)", "arg_window_end"))),
)  # fmt: skip
