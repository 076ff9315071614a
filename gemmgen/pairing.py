"""Kernels that write FP32 matrices as pairs of BF16 rows: what they are, and their CUDA source.

Each row becomes two that follow each other, what BF16 has of it and what BF16 has of the rest. A GEMM whose epilogue adds pairs of columns
(`pair_sum`) then multiplies by their sum. Like a cast (`gemmgen.casts`) it is no `Kernel`: there is nothing to lower.
"""

from __future__ import annotations

from dataclasses import dataclass

from .emit import plain
from .ir.resources import Param

VECTOR = 8  # elements of a row that a thread reads and writes: 16 bytes of BF16
THREADS = 128
SM_CTAS = 12
GREATEST = (2 - 2.0**-7) * 2.0**127  # of BF16
TF32_LOST = 13  # low bits of FP32's 23 that TF32 has not


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """float32 x [rows, columns] -> bfloat16 pairs [2 * all_rows, columns], those of x and behind them pairs of zeros.

    tf32: x is first rounded to TF32, to nearest, away from zero if two are as near; then a pair is exactly that.
    aligned: whether rows of x and of pairs begin at multiples of 16 bytes, and end at multiples of a thread's elements.

    Everything but these is an argument of the kernel: shapes, strides, addresses.
    """

    tf32: bool
    aligned: bool

    @property
    def name(self) -> str:
        """The kernel's, of all fields."""
        return f"pair{'_tf32' * self.tf32}{'_vectors' * self.aligned}"

    @property
    def rounding(self) -> str:
        """Which of templates/pairing rounds a number."""
        return "tf32" if self.tf32 else "f32"

    @property
    def access(self) -> str:
        """Which of templates/pairing reads and writes a thread's elements."""
        return "vector" if self.aligned else "element"

    @property
    def vector(self) -> int:
        """Elements that a thread has."""
        return VECTOR if self.aligned else 1

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
        pointers = (
            Param(name="x", ctype="const float* __restrict__"),
            Param(name="pairs", ctype="uint16_t* __restrict__"),
        )
        sizes = ("x_stride", "pairs_stride", "rows", "all_rows", "columns")
        return (*pointers, *(Param(name=name, ctype="int") for name in sizes))

    def items(self, all_rows: int, columns: int) -> int:
        """What threads are asked for. all_rows: half of those of pairs."""
        return all_rows * (columns // self.vector)

    def tiles(self, all_rows: int, columns: int) -> int:
        """CTAs that have something to do."""
        return -(-self.items(all_rows, columns) // THREADS)


def source(pairing: Pairing) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC. Same pairing, same bytes."""
    return plain("pairing/pair.cu.j2", kernel=pairing, lost=TF32_LOST, greatest=GREATEST)
