"""wgmma groups that are left running (docs/adr/0020-overlapped-promotion.md)."""

from __future__ import annotations

from .lever import AS_IT_IS, Lever, choice

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
    offers=lambda of, c: AS_IT_IS if of.promotes else ({"in_flight": 1},),
    price=lambda price, of, c: {} if of.promotes else {"drain": 0},
)
