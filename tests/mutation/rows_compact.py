"""Rows 121 to 123 and 126: rows of D that begin with their windows, pages of 32 rows, turns where tiles have no products, and a K of one block."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.ir import nodes as ir

from .mutant import edit
from .rows_paged import PAGE, of_page
from .rows_protocol import row, visit

COMPACT, SMALL_PAGES, ONE_BLOCK = "logits-compact", "logits-paged-32", "logits-one-block"
PAGE_32 = PAGE.replace("64", "32")
AT = "const uint32_t at = uint32_t(col) - uint32_t(window_first_held[0]);"


def as_whole_rows(s: ir.StoreValues) -> ir.StoreValues:
    return replace(s, of="sums")


def by_the_end(s: ir.StoreValues) -> ir.StoreValues:
    """Where a row's window begins is where it ends."""
    held = (("window_first", "window_end_held"), *(x for x in s.held if x[0] != "window_first"))
    return replace(s, held=held)


def stored_in_all_tiles(s: ir.If) -> ir.If | tuple[ir.Stmt, ...]:
    stores = any(isinstance(x, ir.StoreValues) for x in s.body)
    return s.body if s.when == "has_blocks" and stores else s


def doubled(s: ir.TmaLoad) -> ir.TmaLoad:
    """As if a page had 64 rows."""
    return replace(s, offset=2 * s.offset)


def multiplied_in_all_tiles(s: ir.If) -> ir.If | tuple[ir.Stmt, ...]:
    return s.body if any(isinstance(x, ir.ForK) for x in s.body) else s


ROWS = (
    row("121", COMPACT, "rows are stored whole", "P", ir=visit(ir.StoreValues, as_whole_rows)),
    row("121b", COMPACT, "a window begins where it ends", "P", ir=visit(ir.StoreValues, by_the_end)),
    row("121c", COMPACT, "tiles that no window reaches are stored too", "P", ir=visit(ir.If, stored_in_all_tiles)),
    row("121d", COMPACT, "columns lie where the product's do", "E", text=edit((AT, "const uint32_t at = col;"))),
    row("121e", COMPACT, "all rows begin with the first one's window", "E", text=edit((AT, AT.replace("window_first_held[0]", "__shfl_sync(0xffffffff, window_first_held[0], 0)")))),
    row("121f", COMPACT, "what lies before a window goes into the row before", "E", text=edit((" && col >= window_first_held[0] && at < uint32_t(d_room)", ""))),
    row("121g", COMPACT, "what lies behind a window is written", "E", text=edit(("col < min(window_end_held[0], shape_n)", "col < shape_n"))),
    row("122", SMALL_PAGES, "half of the pages, of twice the rows", "P",
        ir=visit(ir.LoadPages, lambda s: replace(s, rows=64, count=s.count // 2))),
    row("122b", SMALL_PAGES, "pages lie 64 rows apart in the tile", "P", ir=of_page(doubled)),
    row("122c", SMALL_PAGES, "the first page of the tile for all", "E", text=edit((PAGE_32, PAGE_32.replace(" + i", "")))),
    row("122d", SMALL_PAGES, "scales of pages of 64", "E", text=edit(("numbers + column / 32", "numbers + column / 64"))),
    row("122e", SMALL_PAGES, "a scale's place in a page of 64", "E", text=edit(("* pitch + column % 32", "* pitch + column % 64"))),
    row("123", "fp8-rows-ping-pong", "lanes do not meet before their warp passes its turn", "P",
        ir=visit(ir.Sync, lambda s: () if s.of == "warp" else s)),
    row("126", ONE_BLOCK, "a tile without K blocks waits for one", "P", ir=visit(ir.If, multiplied_in_all_tiles)),
    row("126b", ONE_BLOCK, "the ring stays at the block that was multiplied", "E", text=edit(("                        ring.advance();\n", ""))),
    row("126c", ONE_BLOCK, "a run's tiles are stored where its first is", "E", text=edit(("tile.b_row += COLUMNS, tile.d_col += COLUMNS;", "tile.b_row += COLUMNS;"))),
    row("126d", ONE_BLOCK, "a run's tiles have the windows of its second", "E", text=edit(("first = __shfl_sync(0xffffffff, first, 0), end = __shfl_sync(0xffffffff, end, 0);", "first += COLUMNS;"))),
)  # fmt: skip
