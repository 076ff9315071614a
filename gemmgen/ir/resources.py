"""Kernel IR resources: what statements refer to by name, one table each in the kernel.

A field that is `None` is filled by the pass named beside it; `passes/check_complete.py` proves none is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from .dtypes import DType
from .heads import NO_GAPS, Heads
from .instructions import Major as Major
from .instructions import Wgmma as Wgmma

if TYPE_CHECKING:
    from .pointed import Pointed

Axis = Literal["m", "n", "k"]
PIECE = 16  # bytes that a thread loads at once
UNUSUAL = {
    "unusual": True
}  # a field that the text form shows only where it differs from its default


@dataclass(frozen=True, kw_only=True)
class Coord:
    """One tensor-map coordinate: `base * scale + offset + cta_rank * rank_step`, in elements.

    `base` is a field of the scheduler's Tile, or `k`, the running K block; `start`, where the tile's
    group (derive_maps) or this CTA's share (split_k) begins along K, is added to it. Where tiles sum all groups that is a place in
    the K of all; `of` it the coordinate is the place in its group's `depth`, or which `group` has it. "0": as it is; "page": the number of the tile's
    offset-th page. `heads`: that is a column of the product, and the coordinate is where in D it lies (choose_stores).
    """

    base: Literal[
        "tile.a_row", "tile.b_row", "tile.d_row", "tile.d_col", "tile.group", "k", "0", "page"
    ]
    scale: int = 1
    offset: int = 0
    rank_step: int = 0
    start: Literal["", "tile.k_first", "tile.k_first / 128"] = ""
    heads: Heads = NO_GAPS
    of: Literal["", "depth", "group"] = ""


@dataclass(frozen=True, kw_only=True)
class Param:
    """A kernel argument passed by value: an integer, a float or a global pointer."""

    name: str
    ctype: str

    def __str__(self) -> str:
        return f"{self.ctype} {self.name}"


@dataclass(frozen=True, kw_only=True)
class TmaMap:
    """A tensor map over a global tensor, `inner` contiguous; 3-D with the group outermost if
    `grouped`. Boxes land in (or leave) `smem`.

    TMA zero-fills loads to the element, but clips stores to 16 bytes only: a map that is stored
    through ends at the last whole 16-byte piece of a row (`clip`), and StoreTail writes the rest.

    indices: the parameter that says of each row which of the tensor's it is; "" where it is the same. pages: the one that says which of the
    tensor's pages each of a group's is; "" where it has none. heads: of D, where its columns have gaps that the product's have not.
    """

    name: str
    tensor: str
    inner: Axis
    outer: Axis
    smem: str
    box: tuple[int, int] | None = None  # (inner, outer) elements; split_boxes
    clip: int = 1  # the inner extent is rounded down to whole pieces of `clip` elements
    grouped: bool = field(default=False, metadata=UNUSUAL)
    derived: bool = field(default=False, metadata=UNUSUAL)  # per group, on the device; derive_maps
    indices: str = field(default="", metadata=UNUSUAL)
    pages: str = field(default="", metadata=UNUSUAL)
    heads: Heads = field(default=NO_GAPS, metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class Smem:
    """`stages` copies of a rows x cols tile. Rows are cut into slabs of `slab_bytes` columns.

    Columns are contiguous: K of a K-major operand, whose rows are M or N; of an MN-major one M or N,
    and its rows are K. The stages of an output are pieces of one tile of D, below each other or, `along`
    n, side by side; each belongs to one wave of one warpgroup. Of packed weights each row is a block of 64 rows. Where warpgroups take tiles in turns, each has
    a copy of its own.
    """

    name: str
    dtype: DType
    rows: int
    cols: int
    stages: int
    use: Literal["operand", "blocks", "scales", "output", "map", "partials", "slots", "maxima"]
    swizzle: int | None = None  # bytes, 0 = none; assign_swizzle
    pad: int | None = None  # elements per row; pad_epilogue
    offset: int | None = None  # bytes; layout_smem
    along: Literal["m", "n"] = field(default="m", metadata=UNUSUAL)
    copies: int = field(default=1, metadata=UNUSUAL)  # consumer warpgroups that have one each

    @property
    def step(self) -> int:
        """Rows (along m) or columns (along n) from one piece of an output to the next."""
        return self.rows if self.along == "m" else self.cols

    def corner(self, piece: int) -> tuple[int, int]:
        """Row and column of D's tile where the output's `piece`-th piece begins."""
        return (piece * self.step, 0) if self.along == "m" else (0, piece * self.step)

    @property
    def ring(self) -> bool:
        """Whether its stages are the ring's."""
        return self.use in ("operand", "blocks", "scales")

    @property
    def row_bytes(self) -> int:
        return (self.cols + (self.pad or 0)) * self.dtype.bytes

    @property
    def slab_bytes(self) -> int:
        """Bytes of one row that lie together: the swizzle span; 16 for an unswizzled operand
        (a wgmma core matrix is 8 rows of 16 bytes); else the whole row."""
        if self.swizzle:
            return self.swizzle
        return 16 if self.use == "operand" else self.row_bytes

    @property
    def slabs(self) -> int:
        return self.row_bytes // self.slab_bytes

    @property
    def slab_cols(self) -> int:
        return self.slab_bytes // self.dtype.bytes

    @property
    def slab_stride(self) -> int:
        return self.rows * self.slab_bytes

    @property
    def stage_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def copy_bytes(self) -> int:
        """From one warpgroup's copy to the next."""
        return self.stages * self.stage_bytes

    @property
    def bytes(self) -> int:
        return self.copies * self.copy_bytes

    @property
    def alignment(self) -> int:
        """Where the swizzle pattern repeats; 128 for what TMA writes unswizzled."""
        return max(128, 8 * (self.swizzle or 0))


class Watch(NamedTuple):
    """Of a wait that reports where it stands, and stops the kernel, if it outlasts the budget: its role's number in
    Kernel.roles and its barrier's in Kernel.barriers."""

    role: int
    barrier: int


@dataclass(frozen=True, kw_only=True)
class Barrier:
    """`stages` mbarriers of one meaning: of the ring, one whose phases are tiles, or one for each consumer
    warpgroup, whose phases are its turns."""

    name: str
    stages: int
    per: Literal["stage", "tile", "turn"] = field(default="stage", metadata=UNUSUAL)
    arrivals: int | None = None  # per phase; size_barriers
    tx_bytes: int | None = None  # per phase; size_barriers
    offset: int | None = None  # bytes; layout_smem


@dataclass(frozen=True, kw_only=True)
class Registers:
    """`count` registers per thread, local to a role."""

    name: str
    dtype: DType
    count: int
    transient: bool = False  # takes another's place: the accumulator's that an epilogue is computed from, or a multiplied fragment's


@dataclass(frozen=True, kw_only=True)
class Groups:
    """How the tensors lie when one launch computes several GEMMs: see gemmgen.ir.groupings.Grouping. pages: a group's B, and what an
    epilogue reads per column, lies in pages of so many rows."""

    rows: bool = False
    columns: bool = False
    ragged: bool = False
    depths: Literal["", "columns", "flat"] = field(default="", metadata=UNUSUAL)
    # Rows: at any multiple a group may begin, or begin again; 0 where each has one place.
    step: int = field(default=0, metadata=UNUSUAL)
    pages: int = field(default=0, metadata=UNUSUAL)
    summed: bool = field(default=False, metadata=UNUSUAL)

    def own(self, m: TmaMap | Pointed) -> bool:
        """Whether each group's matrix in `m` has a place and a row stride of its own."""
        return self.depths == "flat" and m.inner == "k"


ONE_GEMM = Groups()
