"""Kernel IR statements of rows of B that come by page (docs/adr/0078-pages.md)."""

from __future__ import annotations

from dataclasses import dataclass

from .blocks import Stmt
from .resources import Coord, Param

# Parameters: which page so many rows of a group's B are, how many such numbers lie between two groups', and how many pages there are.
PAGES, PITCH, COUNT = "pages", "pages_stride", "page_count"
PARAMS = (
    Param(name=PAGES, ctype="const int*"),
    Param(name=PITCH, ctype="int"),
    Param(name=COUNT, ctype="int"),
)
ROWS = (64, 32)  # that a page may have
HELD = "page"  # the registers that a coordinate reads


@dataclass(frozen=True, kw_only=True)
class LoadPages(Stmt):
    """dst = the pages of the tile's rows of B, `count` times `rows` of them: of its group's in `tensor` those from number tile.b_row / rows on,
    and behind the last that has rows before N that one again. A number that is no page's is as good: of those TMA reads zeros."""

    dst: str
    tensor: str
    count: int
    rows: int


def by_page(number: int) -> tuple[Coord, Coord]:
    """The coordinates of a page as a whole, the tile's `number`-th: its first row, and which page it is."""
    return Coord(base="0"), Coord(base="page", offset=number)
