"""Kernels that find the largest numbers of each row: what they are, and their CUDA source.

A CTA has a row. It counts by leading bits how many numbers there are, reads the row once more for those that may be among the largest, and
keeps the few that those bits do not decide, of which it looks at the others, as `gemmgen.ops.top_k` defines it. Like a cast (`gemmgen.casts`) it is no `Kernel`: there is nothing to lower.
"""

from __future__ import annotations

from dataclasses import dataclass

from .emit import plain
from .errors import IRError
from .ir.dtypes import FLOATS, DType
from .ir.resources import Param

VECTOR_BYTES = 16  # the widest load
THREADS = 512
SM_CTAS = 2
BINS = 4096  # by as many leading bits as a round of counting looks at
MOST = BINS  # numbers of a row that are found: they take the bins' place
HELD = 2048  # that a CTA keeps, to look at further bits of them
DIGITS, DIGIT = (
    (12, 12, 8),
    8,
)  # bits of a round of counting, of 32, over a row, and over what is kept


@dataclass(frozen=True, kw_only=True)
class Largest:
    """x [rows, columns] of bf16, f16 or f32 -> found int32 [rows, count], count at most MOST.

    Everything but its dtype is an argument of the kernel. first, end: int32 [rows], or null. compact: whether a row of x begins with its
    window. Raises IRError.
    """

    x: DType

    def __post_init__(self) -> None:
        if self.x not in FLOATS:
            raise IRError(f"the largest of {self.x} are none")

    @property
    def name(self) -> str:
        """The kernel's, of all fields."""
        return f"largest_{self.x}"

    @property
    def vector(self) -> int:
        """Elements of a row that a thread loads at once."""
        return VECTOR_BYTES // self.x.bytes

    @property
    def threads(self) -> int:
        """Of a CTA."""
        return THREADS

    @property
    def ctas_per_sm(self) -> int:
        """That run at once at least."""
        return SM_CTAS

    @property
    def params(self) -> tuple[Param, ...]:
        """In the order of the kernel's."""
        pointers = {
            "x": "const Value::Element* __restrict__",
            "first": "const int* __restrict__",
            "end": "const int* __restrict__",
            "found": "int* __restrict__",
        }
        sizes = ("pitch", "rows", "columns", "keys", "count", "compact")
        kinds = pointers | dict.fromkeys(sizes, "int")
        return tuple(Param(name=name, ctype=ctype) for name, ctype in kinds.items())

    def tiles(self, rows: int) -> int:
        """CTAs that have something to do."""
        return rows


def source(kernel: Largest) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC. Same kernel, same bytes."""
    return plain(
        "largest/largest.cu.j2", kernel=kernel, bins=BINS, held=HELD, digits=DIGITS, digit=DIGIT
    )
