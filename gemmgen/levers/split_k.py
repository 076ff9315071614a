"""CTAs of a cluster that share a tile and divide its K (docs/adr/0010-split-k.md)."""

from __future__ import annotations

from .lever import Lever, choice

SPLIT_K = Lever(
    name="split_k",
    values=choice(1, 2, 4, 8),
    default=1,
    added=True,
    tag="k{}",
    word="K/{}",
)
