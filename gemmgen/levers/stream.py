"""CTAs that take equal stretches of all tiles' K blocks (docs/adr/0044-streams.md)."""

from __future__ import annotations

from .lever import flag

STREAM = flag(
    "stream",
    tag="stream",
    word="streamed",
    reads="CTAs take equal stretches of all tiles' K blocks",
    others=lambda c: ({"stream": True, "split_k": 1},) * (c.swap_ab and not c.stream),
    matters=30,
)
