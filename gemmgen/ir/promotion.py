"""Kernel IR statements that scale a K block's product and add it to the tile's sum, outside the tensor core."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeGuard

from .blocks import Stmt
from .resources import UNUSUAL

LANES = 32  # of a warp: K blocks whose scales of B it loads at once
HELD_BLOCKS = 4  # K blocks whose scales of A its lanes hold at once, of eight rows in a register
OF_A = ("rows", "all_rows")  # `LoadBlockScales.of`, where the scales are A's
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
    """dst = scales, straight from global memory, a lane of each warp those of another K block: of the tile's first ones or
    (inside ForChunks) of the next chunk's; past the last, the last again. "of group": K blocks are counted from where the
    tile's group (derive_maps) or this CTA's share (split_k) begins. `count` registers:

    columns: B's, of the 128-column blocks that a tile touches. waves, where the accumulator's rows are columns of D: B's,
    of the block that this warpgroup's 64 rows lie in, of each wave. rows: A's, of the warp's rows in `wave`; all_rows, where
    they are the accumulator's columns: A's, of all the tile's. Of A register i of lane l has row 8 * i + l / 4 and
    K block l % 4."""

    spelled_by: ClassVar[str] = "of"

    dst: str
    tensor: str
    count: int
    block: Literal["first", "next", "first of group", "next of group"]
    # swap_operands, read_lane_scales
    of: Literal["columns", "waves", "rows", "all_rows"] = field(default="columns", metadata=UNUSUAL)
    wave: int = field(default=0, metadata=UNUSUAL)  # of rows


@dataclass(frozen=True, kw_only=True)
class ShareScales(Stmt):
    """dst = src of the lane that loaded this K block's scales, in every lane; inside ForK. rows, columns: of A, those of the
    accumulator's two rows, or of its columns (a pair of every 8), that the thread has."""

    spelled_by: ClassVar[str] = "of"

    dst: str
    src: str
    of: Literal["block", "rows", "columns"] = field(default="block", metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class Copy(Stmt):
    """dst = src. adding: dst += src, of which one is the sum of a share of K and the other the total of those before it."""

    spelled_by: ClassVar[str] = "by"

    dst: str
    src: str
    by: Literal["setting", "adding"] = field(default="setting", metadata=UNUSUAL)  # add_shares


# By which scales a partial sum's elements are multiplied, and the registers that hold them. block: a row's, and that of the
# tile's scale block `block`, in which all columns of the part lie. split, of a tile that straddles two blocks: the columns
# up to `split`, PerSplit's constant, have the first's, the others the second's. select: the same where `split` is known at
# run time, by a select per 8 columns. columns: a row's and a column's own. wave: a column's own, and the one that the
# rows of `wave` share. column: a column's own alone.
By = Literal["block", "split", "select", "columns", "wave", "column"]
READS: dict[By, tuple[str, ...]] = {
    **dict.fromkeys(("block", "split", "select"), ("row_scales", "block_scales")),
    "columns": ("row_scales", "column_scales"),
    "wave": ("column_scales", "block_scales"),
    "column": ("column_scales",),
}
OF_BLOCKS: tuple[By, ...] = ("block", "split", "select")


@dataclass(frozen=True, kw_only=True)
class Promote(Stmt):
    """dst += src * the product of its scales: leaves the tensor core's short accumulator. src goes into the
    registers of its `part`."""

    spelled_by: ClassVar[str] = "by"

    dst: str
    src: str
    row_scales: str = field(default="", metadata=UNUSUAL)
    column_scales: str = field(default="", metadata=UNUSUAL)  # of the part
    block_scales: str = field(default="", metadata=UNUSUAL)
    by: By = field(default="block", metadata=UNUSUAL)  # split_scales, swap_operands
    part: int = field(default=0, metadata=UNUSUAL)
    block: int = field(default=0, metadata=UNUSUAL)  # split_scales
    wave: int = field(default=0, metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class Accumulate(Stmt):
    """dst += src, into the registers of its `part`: leaves the tensor core's short accumulator."""

    dst: str
    src: str
    part: int = field(default=0, metadata=UNUSUAL)


# What fills registers with B's scales, until read_lane_scales.
BLOCK_SCALES = LoadBlockScales | ShareScales | Copy
PROMOTION = Promote | Accumulate  # what reads a partial sum


def promotes(s: Stmt, *by: By) -> TypeGuard[Promote]:
    """Whether `s` promotes by one of these."""
    return isinstance(s, Promote) and s.by in by
