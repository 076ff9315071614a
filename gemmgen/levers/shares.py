"""One CTA that adds up the same shares of K as CTAs that divide it, one after the other (docs/adr/0056-shares-in-turn.md)."""

from __future__ import annotations

from .lever import AS_IT_IS, C, Changes, L, Lever, choice
from .split_k import SPLITS

# Cycles, none of which was measured: until the tensor cores are filled again, as `cost_fit.FIT.drain`; of a scheduler, per register of a
# warp, to add a sum and to clear it.
DRAIN, EACH = 120.0, 2.0
SCHEDULED = 128  # sums of a tile of which each of an SM's schedulers has a warp's register


def adding_cycles(c: C) -> float:
    """SM cycles per tile in which shares' sums are added up, and nothing is multiplied."""
    each: float = EACH * c.block_m * c.block_n / SCHEDULED
    cycles: float = c.shares * each + (c.shares - 1) * DRAIN
    return cycles


def _offers(of: L, c: C) -> tuple[Changes, ...]:
    """Also as many as CTAs must divide K, where they must."""
    return (*AS_IT_IS, *({"shares": of.split_k},) * (of.split_k > 1))


SHARES = Lever(
    name="shares",
    values=choice(1, *SPLITS),
    default=1,
    added=True,
    tag="sh{}",
    word="K/{} in turn",
    reads="a CTA adds up so many shares of K one after the other, as so many CTAs would",
    offers=_offers,
    tile=True,
    price=lambda price, of, c: {"exchange": adding_cycles(c)},
)
