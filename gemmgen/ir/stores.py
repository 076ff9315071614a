"""Kernel IR statements of the epilogue: from registers to shared memory, and from there to D."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeGuard

from .blocks import Stmt
from .expr import ACC, Argument, Expr, arguments
from .resources import UNUSUAL, Coord

# An FP8 output holds value * (E4M3_MAX / amax), and its scale is amax / E4M3_MAX, both divided with one
# rounding, amax the greatest |value| of a row's 128 columns, but at least LEAST_AMAX.
E4M3_MAX, LEAST_AMAX = 448.0, 1e-4
OUTPUT_SCALE_BLOCK = 128  # columns of D per scale

# StageTile, StoreTile, TmaStore, StoreRows and StoreTail are of one piece of D: the 64 rows that a warpgroup has in a wave,
# and of those the buffer's columns from `column` on. `slot` is the piece of the buffer that it is staged in,
# counted per warpgroup, where several take turns (split_output); OWN: the wave's own.
OWN = -1

# Arguments of a value that are in registers: by name, in which.
Holding = tuple[tuple[str, str], ...]

# What the accumulator's rows are: D's rows, or with swap_ab its columns.
Lines = Literal["rows", "columns"]


@dataclass(frozen=True, kw_only=True)
class Evaluate(Stmt):
    """dst = what `value(src)` makes of one wave, in FP32. of rows: a register per column of D and row that a thread holds.

    of pairs: of rows of the accumulator, which lanes 4 apart hold: these exchange what they need not, and each has one of their two columns
    of D.

    of sums: each row of D is the sum of so many of the product (Block.fold_rows), which are the accumulator's columns. A lane adds its
    own in order of their rows, then the quad's lanes theirs: 0 + 1 and 2 + 3 first. Of each four sums, of the rows r and r + 1 of D and the columns c and c + 8, a
    lane of the quad has one: r's in lanes 0 and 1, of c in even ones.

    of an argument: no src, and `value` is an argument of a sum of rows' epilogue. dst is what a thread asks of it: of rows of the product
    two of every eight, as its accumulator has them; of rows of D those of its sums; of columns that of its sums, or both."""

    spelled_by: ClassVar[str] = "of"

    dst: str
    src: str = field(default="", metadata=UNUSUAL)
    wave: int
    value: Expr = ACC
    pace: int = field(default=0, metadata=UNUSUAL)  # as of StageTile; choose_stores
    of: Literal["rows", "pairs", "sums", "argument"] = field(default="rows", metadata=UNUSUAL)
    held: Holding = field(default=(), metadata=UNUSUAL)  # hold_arguments


@dataclass(frozen=True, kw_only=True)
class RowAmax(Stmt):
    """dst = per row and 128 columns of D, the greatest |src| in D, at least LEAST_AMAX; the same in all
    four lanes that share a row. Two rows per 128 columns: r, r + 8. `of` columns: dst, per row of D that a thread has, is raised to the greatest
    |src| in D that it holds of one wave."""

    spelled_by: ClassVar[str] = "of"

    dst: str
    src: str
    wave: int = field(default=0, metadata=UNUSUAL)
    of: Lines = field(default="rows", metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class ShareAmax(Stmt):
    """The greatest src of each row of D in this warp, to the warp's own place in `smem`."""

    src: str
    smem: str


@dataclass(frozen=True, kw_only=True)
class TakeAmax(Stmt):
    """dst = of each row of D that this thread has the greatest that its warpgroup's warps shared, at least LEAST_AMAX."""

    dst: str
    smem: str


@dataclass(frozen=True, kw_only=True)
class StoreScales(Stmt):
    """src / E4M3_MAX to `tensor` in global memory, for the rows and blocks that D has."""

    spelled_by: ClassVar[str] = "of"

    src: str
    tensor: str
    wave: int
    of: Lines = field(default="rows", metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class Normalise(Stmt):
    """dst *= E4M3_MAX / amax, of its row and 128 columns: what E4M3 holds best."""

    spelled_by: ClassVar[str] = "of"

    dst: str
    amax: str
    of: Lines = field(default="rows", metadata=UNUSUAL)


# How a thread's registers go to shared memory: by stmatrix (16-bit outputs), pairs of 8 bytes (FP32, INT32) or of 2 (FP8),
# element by element where it holds every fourth column (folded outputs); by stmatrix.trans, or one by one, where D's
# rows are the accumulator's columns, of which a lane holds one of eight if they are folded.
By = Literal[
    "matrix",
    "pairs",
    "byte_pairs",
    "elements",
    "matrix_transposed",
    "elements_transposed",
    "folded_transposed",
]
TRANSPOSED = ("matrix_transposed", "elements_transposed", "folded_transposed")


@dataclass(frozen=True, kw_only=True)
class StoreValues(Stmt):
    """`value(src)` of one wave, from registers to `tensor` in global memory, for the rows and columns that D has.

    of sums: each lane of a quad the one that it has of each four. window: the same of what lies in its row's window
    alone, `value`'s, in D from the row's first column on, as far as D has columns (`row_sums.ROOM`). outside: no src, and minus infinity: no window reaches
    the tile."""

    spelled_by: ClassVar[str] = "of"

    tensor: str
    wave: int
    of: Literal["sums", "window", "outside"]
    src: str = field(default="", metadata=UNUSUAL)
    value: Expr = ACC
    held: Holding = field(default=(), metadata=UNUSUAL)  # hold_arguments


@dataclass(frozen=True, kw_only=True)
class StageTile(Stmt):
    """Write one wave of `value(src)` into its D tile in shared memory."""

    spelled_by: ClassVar[str] = "by"

    src: str
    smem: str
    wave: int
    value: Expr = ACC
    by: By | None = None  # choose_stores
    # A warp computes no further ahead than so many elements, 0: as far as it may; choose_stores
    pace: int = field(default=0, metadata=UNUSUAL)
    column: int = field(default=0, metadata=UNUSUAL)
    slot: int = field(default=OWN, metadata=UNUSUAL)


def reads(s: Evaluate | StageTile | StoreValues) -> tuple[Argument, ...]:
    """What of its value `s` reads in global memory, in first-use order."""
    holding = () if isinstance(s, StageTile) else s.held
    return tuple(x for x in arguments(s.value) if x.name not in dict(holding))


@dataclass(frozen=True, kw_only=True)
class StoreTile(Stmt):
    """Send one wave of D from shared to global memory, or add it to what is there; choose_stores
    spells it."""

    tensor_map: str
    smem: str
    wave: int
    add: bool = field(default=False, metadata=UNUSUAL)
    column: int = field(default=0, metadata=UNUSUAL)
    slot: int = field(default=OWN, metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class TmaStore(Stmt):
    """One box from `smem` to global memory (`add`: added to what is there), unless it lies wholly past
    the map's edge."""

    tensor_map: str
    smem: str
    wave: int
    coords: tuple[Coord, ...]
    offset: int = 0  # bytes within the wave; choose_stores
    add: bool = field(default=False, metadata=UNUSUAL)
    column: int = field(default=0, metadata=UNUSUAL)
    slot: int = field(default=OWN, metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class StoreTail(Stmt):
    """Element by element, the columns after the last whole 16-byte piece of D's rows. own: one column, of which `tensor` has nothing else."""

    tensor: str
    smem: str
    wave: int
    own: bool = field(default=False, metadata=UNUSUAL)
    add: bool = field(default=False, metadata=UNUSUAL)
    column: int = field(default=0, metadata=UNUSUAL)
    slot: int = field(default=OWN, metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class StoreRows(Stmt):
    """The whole 16-byte pieces of those rows that D (a ragged group) has, by plain loads and stores."""

    tensor: str
    smem: str
    wave: int
    add: bool = field(default=False, metadata=UNUSUAL)
    column: int = field(default=0, metadata=UNUSUAL)
    slot: int = field(default=OWN, metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class BulkRowStore(Stmt):
    """Row by row from a padded tile, one bulk copy of whole 16-byte pieces per thread."""

    tensor: str
    smem: str
    wave: int
    add: bool = field(default=False, metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class StoreCommit(Stmt):
    pass


@dataclass(frozen=True, kw_only=True)
class StoreWait(Stmt):
    """Wait until `pending` store groups are left; `reads` waits for shared memory only."""

    pending: int
    reads: bool


OfD = StageTile | StoreTile | TmaStore | StoreRows | StoreTail


def turns(s: Stmt) -> TypeGuard[OfD]:
    """Whether `s` is of a piece whose place it shares with others."""
    return isinstance(s, OfD) and s.slot != OWN


def slot(s: OfD) -> int:
    """Which of a warpgroup's pieces of the buffer `s` writes or reads."""
    return s.wave if s.slot == OWN else s.slot
