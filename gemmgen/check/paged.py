"""Rows that come by page: each box gets the page that it is for. See values.py and placement.py."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import nodes as ir
from ..ir.rewrite import statements
from .reader import Held, Reader

WHOLE = (32, 64)  # rows that a page may have


def of_pages(r: Reader, s: ir.LoadPages | ir.TmaLoad) -> None:
    """A register has the pages of a tile's rows, and those are loaded by those of their own tile."""
    held = Held(what="pages of rows", tile=r.tile)
    if isinstance(s, ir.LoadPages):
        r.registers[s.dst] = held
    elif s.pages:
        r.want(s, s.pages, held)


def page_of(kernel: ir.Kernel, s: ir.TmaLoad, slab_rows: int) -> Iterator[str]:
    """A box is all rows of the page whose place in the tile it lands in. slab_rows: how many rows into the slab it does."""
    m, to = kernel.map(s.tensor_map), kernel.buffer(s.smem)
    row, page = s.coords[1:]
    rows = kernel.groups.pages
    if not m.grouped or rows not in WHOLE:
        yield f"{m.name} has pages, and {'the kernel' if m.grouped else 'it'} knows of none"
        return
    if (row, page.base, page.scale, page.start) != (ir.Coord(base="0"), "page", 1, ""):
        yield f"a page of {m.name} is placed by {s.coords[1:]}"
    if rows * page.offset != slab_rows or page.rank_step:
        yield f"page {page.offset} of the tile lands at row {slab_rows} of {to.name}"
    if kernel.block.n % rows or m.box != (to.slab_cols, rows):
        yield f"{m.name}'s box {m.box} is no page's in a tile of {kernel.block.n} rows"
    known = [x for x in statements(kernel) if isinstance(x, ir.LoadPages) and x.dst == s.pages]
    if [(x.tensor, x.count, x.rows) for x in known] != [(m.pages, to.rows // rows, rows)]:
        yield f"{to.name} has {to.rows // rows} pages, known are {[(x.tensor, x.count, x.rows) for x in known]}"


def whole(kernel: ir.Kernel, s: ir.LoadPages) -> Iterator[str]:
    """A register for each page, and a box in each slab for each."""
    held = next(r.count for role in kernel.roles for r in role.locals if r.name == s.dst)
    if held != s.count:
        yield f"{s.dst} has {held} registers for {s.count} pages"
