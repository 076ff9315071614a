"""The operand that a cluster of two CTAs shares: one load writes both of their rings."""

from __future__ import annotations

from .lever import Lever, choice

SHARED = ("none", "a", "b")

MULTICAST = Lever(
    name="multicast",
    values=choice(*SHARED),
    default="none",
    tag="mc{}",
    word="multicast {}",
    others=lambda c: ({"multicast": x} for x in SHARED if x != c.multicast),
    matters=10,
    sums=False,
)
