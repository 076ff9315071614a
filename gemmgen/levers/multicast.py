"""The operand that a cluster of two CTAs shares: one load writes both of their rings."""

from __future__ import annotations

from ..ir.groupings import GROUPINGS
from .lever import AS_IT_IS, C, Changes, L, Lever, choice

SHARED = ("none", "a", "b")


def _offers(of: L, c: C) -> tuple[Changes, ...]:
    """Also an operand that a cluster finds two tiles to share, if no cluster divides K. In one wave not where a tile covers all rows: then
    HBM is waited for, and A's rows past the last are filled, which a cluster does not halve (32 x 4096 x 7168: 1.27 of the time). Not B of runs of rows
    where warpgroups take turns and cut D: NVRTC 13.0 and 13.5 spilled 24 to 152 bytes of each such kernel of BF16, 128x128, 128x160 and
    128x192, whatever registers were left. Not A whose rows come by index: threads copy them, each CTA's for itself. Not B of packed weights, nor B in pages."""
    m, n, _ = of.shape
    few = of.tiles(c) <= of.target.sms and (c.swap_ab or m <= c.block_m)
    alone = c.split_k > 1 or few
    spilled = GROUPINGS[of.problem.grouping].again and c.turns > 1 and c.d_columns
    sharing = {
        "a": n > c.block_n and not of.problem.indexed,
        "b": m > c.block_m and not (spilled or of.recipe.coded or of.problem.paged),
    }  # A is shared along N, B along M
    return *AS_IT_IS, *({"multicast": x} for x, pays in sharing.items() if pays and not alone)


MULTICAST = Lever(
    name="multicast",
    values=choice(*SHARED),
    default="none",
    tag="mc{}",
    word="multicast {}",
    others=lambda c: ({"multicast": x} for x in SHARED if x != c.multicast),
    matters=10,
    sums=False,
    offers=_offers,
)
