"""Column parts of a tile that are multiplied and promoted one after the other (docs/adr/0011-parts.md)."""

from __future__ import annotations

from .lever import Lever, choice

PARTS = Lever(
    name="parts",
    values=choice(1, 2),
    default=1,
    added=True,
    tag=lambda c: f"p{c.parts}" * (c.parts != 1),
    word=lambda c: f"{c.parts} parts" * (c.parts != 1),
    reads="column parts are multiplied and promoted one after the other",
)
