"""Consumers look whether the next stage is filled before they promote (docs/adr/0028-peek.md)."""

from __future__ import annotations

from .lever import flag

PEEK = flag(
    "peek",
    tag="pk",
    word="peeking",
    reads="whether the next stage is filled is looked at while sums are promoted",
    others=lambda c: ({"peek": not c.peek, "unroll": 1},),
    matters=60,
    sums=False,
)
