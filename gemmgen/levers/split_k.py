"""CTAs of a cluster that share a tile and divide its K (docs/adr/0010-split-k.md)."""

from __future__ import annotations

from ..ir.groupings import GROUPINGS
from .direct import per_sm
from .lever import AS_IT_IS, C, Changes, L, Lever, choice

ANY = 0  # CTAs that divide K: as many as pay
SPLITS, LEAST_SHARE = (2, 4, 8), 4  # CTAs that may divide K, and K blocks that each has at least
# Cycles until the sums of CTAs that divide K have met in one, and bytes of them that it takes per cycle, as
# 120 shapes of few rows say (`cost_fit`).
EXCHANGE, EXCHANGE_RATE = 1000.0, 24.0


def exchange_cycles(c: C) -> float:
    """SM cycles per tile until the sums of the CTAs that divide K are together in one; 0 if none do."""
    sent: int = 4 * c.block_m * c.block_n * (c.split_k - 1)
    divided = bool(c.split_k > 1)
    return EXCHANGE * divided + sent / EXCHANGE_RATE


def _offers(of: L, c: C) -> tuple[Changes, ...]:
    """Also each number of CTAs that all run at once and have K blocks enough to divide. Where the launch says how many, only
    that, whether or not all run at once."""
    whole: bool = of.split_k <= 1 or c.shares > 1
    splits = SPLITS if of.split_k == ANY else (of.split_k,)
    if (
        of.split_k == 1
        or c.shares > 1
        or GROUPINGS[of.problem.grouping].depths
        or (whole and of.problem.together)
    ):
        return AS_IT_IS * whole
    blocks, tiles = -(-of.k_bytes // c.block_k_bytes), of.tiles(c)  # each tile becomes a cluster's
    fit = [n for n in splits if blocks >= n * LEAST_SHARE]
    on_one = per_sm(c, of.target) if c.direct else 1
    fit = [n for n in fit if tiles <= of.target.clusters(n) * on_one] if whole else fit
    # D is whole: rule `column-stores`.
    return *AS_IT_IS * whole, *({"split_k": n, "d_columns": None} for n in fit)


SPLIT_K = Lever(
    name="split_k",
    values=choice(1, *SPLITS),
    default=1,
    added=True,
    tag="k{}",
    word="K/{}",
    offers=_offers,
    tile=True,
    price=lambda price, of, c: {"exchange": exchange_cycles(c)},
)
