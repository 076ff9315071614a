"""Consumers without a loop over K, which has one block (docs/adr/0094-one-block-of-k.md)."""

from __future__ import annotations

from .lever import flag

ONE_BLOCK = flag(
    "one_block",
    tag="k1",
    word="K in one block",
    reads="K has one block, and consumers have no loop over it",
    sums=False,
    matters=90,
)
