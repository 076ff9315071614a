"""CTAs that take equal stretches of all tiles' K blocks (docs/adr/0044-streams.md)."""

from __future__ import annotations

from ..ir.groupings import GROUPINGS
from .lever import AS_IT_IS, C, Changes, L, flag
from .split_k import EXCHANGE, EXCHANGE_RATE

COUNTED = ("none", "batched", "summed")  # groupings whose tiles the host can count
ROWS = 64  # of a tile
# Bytes of sums that a CTA takes per cycle beyond those of FEW CTAs, which come meanwhile: tiles of 64x64 to 128x256 of 11 to 66 CTAs, one H200.
HANDED_RATE, FEW = 60.0, 4


def handed_cycles(c: C, ctas: int) -> float:
    """SM cycles until the sums of so many CTAs are together in the one that finishes a tile."""
    few, size = min(ctas, FEW), 4 * c.block_m * c.block_n
    cycles: float = EXCHANGE + size * few / EXCHANGE_RATE + size * (ctas - few) / HANDED_RATE
    return cycles


def _offers(of: L, c: C) -> tuple[Changes, ...]:
    """Also it, where weights are decoded and tiles are fewer than SMs: of 64 rows and more, where it was measured to pay (docs/findings.md). And where
    tiles sum all groups and are fewer than SMs: a cluster has too few CTAs to divide so much K among all SMs."""
    counted = of.problem.grouping in COUNTED and of.problem.collective == "none"
    few = of.tiles(c) < of.target.sms and c.block_m >= ROWS
    long = of.recipe.coded or GROUPINGS[of.problem.grouping].summed
    if not (long and counted and few) or of.split_k or c.split_k > 1:
        return AS_IT_IS
    return {}, {"stream": True}


STREAM = flag(
    "stream",
    tag="stream",
    word="streamed",
    reads="CTAs take equal stretches of all tiles' K blocks",
    others=lambda c: ({"stream": True, "split_k": 1},) * (c.swap_ab and not c.stream),
    matters=30,
    offers=_offers,
    beside=("in_flight",),
)
