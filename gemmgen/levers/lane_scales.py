"""A's block scales read by the consumers' lanes, in whichever layout they come (docs/adr/0046-lane-scales.md)."""

from __future__ import annotations

from .lever import C, Changes, L, flag

# Cycles per K block and wave that promotion begins later, and those of a shuffle in place of a share of a load, of each column
# that a thread has where A's rows are the accumulator's columns: 32 shapes on an H200 (docs/performance.md).
LATER, SHUFFLED = 100.0, 2.0
LANE_COLUMNS = 4  # a lane has every fourth


def _price(price: Changes, of: L, c: C) -> Changes:
    columns = c.wgmma_n / LANE_COLUMNS if c.swap_ab else 0
    return {"drain": price["drain"] + LATER + SHUFFLED * columns}


LANE_SCALES = flag(
    "lane_scales",
    tag="ls",
    word="scales by lane",
    reads="consumers' lanes read A's scales from global memory, four K blocks at a time, in any layout",
    sums=False,
    price=_price,
)
