"""wgmma groups that are left running (docs/adr/0020-overlapped-promotion.md)."""

from __future__ import annotations

from .lever import Lever, choice

IN_FLIGHT = Lever(
    name="in_flight",
    values=choice(0, 1),
    default=0,
    tag="w{}",
    word="in flight",
    reads="a wgmma group runs on: where sums stay in the tensor core, while the next stage is waited for; where they "
    "are promoted, while the piece of a K block before it is",
    others=lambda c: ({"in_flight": 1 - c.in_flight},),
    matters=70,
    sums=False,
)
