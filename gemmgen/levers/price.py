"""What the cost model adds a config's time up from, as far as levers change it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Price:
    """SM cycles, unless another unit is said.

    step: that a K block takes longer. drain: from one wgmma group's end to the next one's start. dearer: how many times as
    long promotion takes as with a scale per row. loads: how often a warp loads its column scales in a K block.
    writes: share of TMA's writes into shared memory that competes with wgmma's reads. main: share of the main loop that comes
    on top of it. epilogue: of a tile, whatever its sides. pieces: in which a tile's D is staged; piece: of each. row:
    columns of D that a box stores. exchange: until the sums of CTAs or warpgroups that divide a tile's K have met. turn: until the next
    warpgroup multiplies, of those that take tiles in turns. high: tiles along M that draw from HBM, of all groups' rows.
    """

    step: float
    drain: float
    dearer: float
    loads: int
    writes: float
    main: float
    epilogue: float
    pieces: float
    piece: float
    row: int
    exchange: float
    turn: float
    high: int
