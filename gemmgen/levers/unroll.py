"""K blocks per trip of the consumers' loop."""

from __future__ import annotations

from .lever import Lever, integer

TRIED = (4, 1, 2)

UNROLL = Lever(
    name="unroll",
    values=integer(1, 8),
    default=1,
    tag="u{}",
    word="u{}",
    others=lambda c: ({"unroll": x, "peek": False} for x in TRIED if x != c.unroll),
    matters=50,
    sums=False,
)
