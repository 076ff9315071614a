"""Column parts of a tile that are multiplied and promoted one after the other (docs/adr/0011-parts.md)."""

from __future__ import annotations

from .lever import Lever, choice

PARTS = Lever(
    name="parts",
    values=choice(1, 2),
    default=1,
    added=True,
    tag="p{}",
    word="{} parts",
    reads="column parts are multiplied and promoted one after the other",
    sums=False,
)
