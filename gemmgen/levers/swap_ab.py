"""D^T = B A^T, for few rows (docs/adr/0009-swap-ab.md)."""

from __future__ import annotations

from .lever import C, Changes, L, flag

# How much longer promotion takes with a scale per column and one per 64 rows, or a row: a multiplication more for every multiply-add
# (two rows, and rows' own: not measured).
PER_PAIR = 1.5
MOST_ALONG_M = 2


def _price(price: Changes, of: L, c: C) -> Changes:
    """Second reads of its tiles come from L2; of more than two along M, as packed weights have, all draw."""
    few = not of.recipe.coded or price["high"] <= MOST_ALONG_M * len(of.rows)
    dearer = PER_PAIR if of.recipe.scaled_by_b(of.problem.form) else 1.0
    high = len(of.rows) if few else price["high"]
    return {"high": high, "dearer": price["dearer"] if of.recipe.scales_columns else dearer}


SWAP_AB = flag(
    "swap_ab",
    tag="swap",
    word="swapped",
    reads="computes D^T = B A^T",
    sums=False,
    tile=True,
    price=_price,
)
