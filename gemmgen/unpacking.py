"""Kernels that write out what packed weights of 4 and 8 bits stand for: what they are, and their CUDA source.

A kernel decodes blocks (`gemmgen.ir.packed`) in the registers of a warpgroup as a product takes them from there, and stores the numbers. Like a
cast (`gemmgen.casts`) it is no `Kernel`: there is nothing to lower.
"""

from __future__ import annotations

from dataclasses import dataclass

from .emit import PAIRS as PTX_PAIRS
from .emit import plain
from .emit.decoding import SPELLED
from .ir.codings import STEP, THREADS
from .ir.dtypes import E4M3
from .ir.packed import COLUMNS, ROWS, Form
from .ir.resources import Param

SM_CTAS = 8


@dataclass(frozen=True, kw_only=True)
class Unpacking(Form):
    """Blocks -> numbers of `to` [rows, columns], (code - zero) * scale, rounded once. Raises IRError."""

    @property
    def layout(self) -> str:
        """Which of templates/unpacking goes through a block."""
        if self.bits == 8:
            return "alone"
        return "bytes" if self.to == E4M3 else "halves"

    @property
    def name(self) -> str:
        """The kernel's, of all fields."""
        return f"unpack_{self.element}_{self.group or 'column'}{'_zeros' * self.zeros}_to_{self.to}"

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
            Param(name="blocks", ctype="const uint8_t* __restrict__"),
            Param(name="numbers", ctype=f"uint{self.to.bits}_t* __restrict__"),
        )
        return (*pointers, *(Param(name=x, ctype="int") for x in ("rows", "columns")))

    def tiles(self, rows: int, columns: int) -> int:
        """Blocks of a matrix: CTAs that have something to do."""
        return -(-rows // ROWS) * -(-columns // COLUMNS)


def source(unpacking: Unpacking) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC. Same kernel, same bytes."""
    sizes = {"rows": ROWS, "columns": COLUMNS, "step": STEP}
    spelled = {f.__name__: f for f in SPELLED}
    return plain("unpacking/unpack.cu.j2", PTX_PAIRS, kernel=unpacking, **sizes, **spelled)
