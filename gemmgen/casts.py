"""Kernels that quantise a matrix: what they are, and their CUDA source.

A cast reads x once and writes q and a scale for all elements that share one, as `gemmgen.ops.quantise_rows` and
`quantise_blocks` define them. It is no `Kernel`: it has no tensor maps, no barriers and no roles to lower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .emit import plain
from .errors import IRError
from .ir.dtypes import BF16, E4M3, F16, F32, S8, DType
from .ir.resources import Param
from .ir.stores import E4M3_MAX, LEAST_AMAX, OUTPUT_SCALE_BLOCK

Per = Literal["columns", "row", "block"]

SHARED = {"columns": "row and 128 columns", "row": "row", "block": "128 rows and 128 columns"}
INPUTS = {BF16: 0x7F80, F16: 0x7C00, F32: 0x7F800000}  # bits of infinity
LIMITS = {E4M3: E4M3_MAX, S8: 127.0}

SIDE = OUTPUT_SCALE_BLOCK  # of columns and blocks that share a scale: as in FP8 outputs
VECTOR_BYTES = 16  # the widest load
WARP = 32
ROW_THREADS = (32, 64, 128, 256, 512)
MOST_BY_ELEMENT = 256  # threads of a row, and of an SM: each access takes registers
# Bytes of x that an SM has on its way at once: thrice what hides the latency of memory.
SM_BYTES = 96 << 10
SM_CTAS = 32  # at most
SLOTS = {"row": 4, "block": 8}  # loads that a thread has under way at once
ROWS = 8  # of a warp: their scales, MN-major, are a sector of the L2

POINTERS = (
    Param(name="x", ctype="const Element* __restrict__"),
    Param(name="q", ctype="uint8_t* __restrict__"),
    Param(name="scale", ctype="float* __restrict__"),
)
SIZES = (
    Param(name="x_stride", ctype="int"),
    Param(name="rows", ctype="int"),
    Param(name="columns", ctype="int"),
)
GROUP_ROWS = Param(name="group_rows", ctype="int")
MORE = {
    "columns": (GROUP_ROWS, Param(name="scale_stride", ctype="int")),
    "row": (),
    "block": (GROUP_ROWS,),
}


@dataclass(frozen=True, kw_only=True)
class Cast:
    """x [rows, columns] of bf16, f16 or f32 -> q of e4m3 or s8, and float32 scales.

    per: what shares a scale. "columns": a row's 128 columns; scales lie column by column, `scale_stride` apart, of
    every `group_rows` rows. "row": a row; dense. "block": 128 rows of a group and 128 columns; dense.
    aligned: rows of x begin, and rows of x and q end, at multiples of 16 bytes of x; else elements are read and
    written one at a time. threads: of the CTA that holds a "row" (32 to 512, a power of two; None for others).

    Everything but these is an argument of the kernel: shapes, strides, addresses. Raises IRError.
    """

    x: DType
    q: DType
    per: Per
    power_of_two: bool = False
    aligned: bool = True
    row_threads: int | None = None

    def __post_init__(self) -> None:
        if self.x not in INPUTS or self.q not in LIMITS or self.per not in SHARED:
            raise IRError(f"a cast of {self.x} to {self.q} per {self.per!r} is none")
        most = ROW_THREADS[-1] if self.aligned else MOST_BY_ELEMENT
        widths = [n for n in ROW_THREADS if n <= most] if self.per == "row" else [None]
        if self.row_threads not in widths:
            raise IRError(f"row_threads={self.row_threads}: must be one of {widths}")

    @property
    def name(self) -> str:
        """The kernel's, of all fields."""
        width = f"_{self.row_threads}" if self.row_threads else ""
        rest = "_power_of_two" * self.power_of_two + "_elements" * (not self.aligned)
        return f"cast_{self.x}_{self.q}_per_{self.per}{width}{rest}"

    @property
    def what(self) -> str:
        return SHARED[self.per]

    @property
    def vector(self) -> int:
        """Elements of x in 16 bytes."""
        return VECTOR_BYTES // self.x.bytes

    @property
    def slots(self) -> int:
        """Times 16 bytes of x that a thread holds: loads that are under way at once."""
        return SLOTS.get(self.per) or ROWS * SIDE // self.vector // WARP

    @property
    def threads(self) -> int:
        """Of a CTA: eight warps with tiles of their own, or what holds a row or a block."""
        blocks = {"columns": 8 * WARP, "block": SIDE * SIDE // self.vector // SLOTS["block"]}
        return self.row_threads or blocks[self.per]

    @property
    def ctas_per_sm(self) -> int:
        """That run at once at least."""
        if not self.aligned:
            return max(1, MOST_BY_ELEMENT // self.threads)
        return min(-(-SM_BYTES // (self.threads * self.slots * VECTOR_BYTES)), SM_CTAS)

    @property
    def infinite(self) -> str:
        return f"0x{INPUTS[self.x]:X}"

    @property
    def limit(self) -> str:
        """The greatest |q|."""
        return f"{LIMITS[self.q]}f"

    @property
    def least_amax(self) -> str:
        return f"{LEAST_AMAX}f"

    @property
    def access(self) -> str:
        return "vectors" if self.aligned else "elements"

    @property
    def rounding(self) -> str:
        return "power_of_two" if self.power_of_two else "nearest"

    @property
    def device_code(self) -> tuple[str, ...]:
        """Templates of what its CTAs do together."""
        return ("slot_max",) if self.per == "columns" else ("cta_max",)

    @property
    def params(self) -> tuple[Param, ...]:
        """In the order of the kernel's."""
        return (*POINTERS, *SIZES, *MORE[self.per])

    def tiles(self, rows: int, columns: int, group_rows: int) -> int:
        """CTAs that have something to do: of a launch over so many rows, in groups of `group_rows`."""
        wide = -(-columns // SIDE)
        match self.per:
            case "row":
                return rows
            case "block":
                return rows // group_rows * -(-group_rows // SIDE) * wide
        return -(-(-(-rows // ROWS) * wide) // (self.threads // WARP))


def row_threads(x: DType, columns: int, aligned: bool) -> int:
    """The fewest threads that hold a row of `columns` in one go, or the most there are: a longer row is read twice."""
    bytes_of = SLOTS["row"] * VECTOR_BYTES
    widths = [n for n in ROW_THREADS if aligned or n <= MOST_BY_ELEMENT]
    return next((n for n in widths if n * bytes_of >= columns * x.bytes), widths[-1])


def source(cast: Cast) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC. Same cast, same bytes."""
    return plain("casts/cast.cu.j2", cast=cast)
