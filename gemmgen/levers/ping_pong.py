"""Ping-pong: each consumer warpgroup has a tile of its own, one stores while another multiplies (docs/adr/0027-ping-pong.md).

What it costs was timed: 19 to 33 configs at 43 launches of BF16, FP16, FP8 and INT8 without promotion, each against the
tuned config.
"""

from __future__ import annotations

from .d_columns import widest
from .lever import AS_IT_IS, C, Changes, L, flag

ROWS = 128  # of a tile: two waves. With one, A and B are read more often; with three, B's columns must be few
# block_n; narrower ones are read more often, wider ones have no registers.
WIDTHS = range(96, 193, 16)

# Cycles per tile until the next multiplies, and of an epilogue, which shares the SM with the other's main loop; of each
# piece of D, and more where its rows are narrower than NARROW bytes.
TURN, EPILOGUE = 100.0, 4000.0
PIECE, NARROW_PIECE, NARROW = 100.0, 200.0, 64
WRITES = 0.45  # share of TMA's writes that compete with one warpgroup's reads
# What a ring of a stage less, with D whole, adds to the main loop: of 56 pairs of 128x128 where K is 4096 or more, five stages
# took from 1.7 % less to 3.7 % more than six, 1.5 % more in the mean.
WHOLE = 0.02


def _offers(of: L, c: C) -> tuple[Changes, ...]:
    """Also each of two consumers at a tile of its own, with D in pieces and whole, where that may pay: sums stay in the tensor
    core, as one warpgroup alone hides no promotion, and SMs have more than a tile each."""
    divided = of.split_k > 1 and c.shares == 1
    if divided or of.promotes or c.swap_ab or (c.block_m, c.consumers) != (ROWS, 2):
        return AS_IT_IS
    if c.block_n not in WIDTHS or of.tiles(c) <= of.target.sms:
        return AS_IT_IS
    columns = widest(of, c)
    pieces = ({"ping_pong": True, "d_columns": columns},) if columns else ()
    return *AS_IT_IS, *pieces, {"ping_pong": True}


def _price(price: Changes, of: L, c: C) -> Changes:
    narrow = (c.d_columns or 0) * of.problem.d.bytes < NARROW
    return {
        "writes": WRITES,
        "main": WHOLE * (not c.d_columns),
        "epilogue": EPILOGUE,
        "piece": PIECE + NARROW_PIECE * narrow,
        "turn": TURN,
    }


PING_PONG = flag(
    "ping_pong",
    tag="pp",
    word="ping-pong",
    reads="each consumer warpgroup has a tile of its own: one stores while the next multiplies",
    sums=False,
    offers=_offers,
    tile=True,
    hides=1,  # of tiles that one warpgroup multiplies by itself, in half the time
    price=_price,
)
