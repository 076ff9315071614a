"""Kernel IR statements that scale a K block's product and add it to the tile's sum, outside the tensor core."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .blocks import Stmt
from .resources import UNUSUAL

LANES = 32  # of a warp: K blocks whose scales it loads at once
SCALE_BLOCK = 128  # rows of B, and K, that share a scale


@dataclass(frozen=True, kw_only=True)
class LoadRowScales(Stmt):
    """dst[0..1] = the scales of the accumulator's two rows (r, r + 8) of this thread in `wave`, from
    shared memory: A's, or B's where swap_operands exchanged them."""

    dst: str
    smem: str
    wave: int


@dataclass(frozen=True, kw_only=True)
class LoadColumnScales(Stmt):
    """dst = the scales of the accumulator's columns in `part` of this thread (a pair of every 8), from
    shared memory: B's, or A's where swap_operands exchanged them."""

    dst: str
    smem: str
    part: int = field(default=0, metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class LoadBlockScales(Stmt):
    """dst = B's scales, straight from global memory, of the `count` 128-column blocks a tile touches: of one
    K block per lane, of its first ones or (inside ForChunks) of the next chunk's; past the last, the last
    again. "of group": K blocks are counted from where the tile's group (derive_maps) or this CTA's share
    (split_k) begins."""

    dst: str
    tensor: str
    count: int
    block: Literal["first", "next", "first of group", "next of group"]


@dataclass(frozen=True, kw_only=True)
class LoadWaveScales(LoadBlockScales):
    """The same where the accumulator's rows are columns of D: the scale of the 128-column block that this
    warpgroup's 64 rows lie in, of each of `count` waves."""


@dataclass(frozen=True, kw_only=True)
class ShareScales(Stmt):
    """dst = src of the lane that loaded this K block's scales, in every lane; inside ForK."""

    dst: str
    src: str


@dataclass(frozen=True, kw_only=True)
class Copy(Stmt):
    dst: str
    src: str


@dataclass(frozen=True, kw_only=True)
class Promote(Stmt):
    """dst += src * row_scales * block_scales: leaves the tensor core's short accumulator. src goes into
    the registers of its `part`, whose columns lie in the tile's scale block `block`."""

    dst: str
    src: str
    row_scales: str
    block_scales: str
    part: int = field(default=0, metadata=UNUSUAL)
    block: int = field(default=0, metadata=UNUSUAL)  # split_scales


@dataclass(frozen=True, kw_only=True)
class PromoteColumns(Stmt):
    """dst += src * row_scales * column_scales: the same where every column has a scale of its own."""

    dst: str
    src: str
    row_scales: str
    column_scales: str  # of the part
    part: int = field(default=0, metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class PromoteSplit(Promote):
    """Promote a tile that straddles two 128-column scale blocks: the columns up to `split` with the first's
    scale, the others with the second's. Inside PerSplit, whose constant it is."""


@dataclass(frozen=True, kw_only=True)
class PromoteSelect(PromoteSplit):
    """The same where `split` is known at run time: a select per 8 columns."""


@dataclass(frozen=True, kw_only=True)
class PromoteWave(Stmt):
    """dst += src * column_scales * block_scales[wave]: the rows share a scale, every column has its own."""

    dst: str
    src: str
    column_scales: str
    block_scales: str
    wave: int


@dataclass(frozen=True, kw_only=True)
class Accumulate(Stmt):
    """dst += src, into the registers of its `part`: leaves the tensor core's short accumulator."""

    dst: str
    src: str
    part: int = field(default=0, metadata=UNUSUAL)


BLOCK_SCALES = LoadBlockScales | ShareScales | Copy  # what fills registers with B's scales
PROMOTION = Promote | PromoteColumns | PromoteWave | Accumulate  # what reads a partial sum
