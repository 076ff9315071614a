"""Kernels that copy rows of tokens to the rows of their experts: what they are, and their CUDA source.

A spread reads each token's row once and writes it as often as it has copies, as `gemmgen.ops.spread` defines it. Like
a cast (`gemmgen.casts`) it is no `Kernel`: there is nothing to lower.
"""

from __future__ import annotations

from dataclasses import dataclass

from .emit import plain
from .errors import IRError
from .ir.resources import Param

# By their bytes, what a thread reads and writes.
UNITS = {
    16: "uint4",
    8: "uint2",
    4: "unsigned int",
    2: "unsigned short",
    1: "unsigned char",
}
AT_ONCE = 8  # slots that a thread reads before it stores
THREADS = 128
SM_CTAS = 12  # more would leave a thread too few registers


@dataclass(frozen=True, kw_only=True)
class Spread:
    """q [tokens, parts] of units, float32 scale [tokens, blocks], slots int32 [tokens, top] -> codes [rows, parts], scales
    [rows, blocks].

    unit: bytes of which the rows of q and of codes are multiples, and begin at multiples: 1, 2, 4, 8 or 16.

    Everything but these is an argument of the kernel: shapes, strides, addresses. Raises IRError.
    """

    unit: int = 16

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise IRError(f"unit={self.unit}: must be one of {[*UNITS]}")

    @property
    def name(self) -> str:
        """The kernel's, of all fields."""
        return f"spread_{self.unit}_bytes"

    @property
    def ctype(self) -> str:
        """Of a unit."""
        return UNITS[self.unit]

    @property
    def at_once(self) -> int:
        """Copies whose slots a thread reads at once."""
        return AT_ONCE

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
            "q": "const Unit* __restrict__",
            "scale": "const float* __restrict__",
            "slots": "const int* __restrict__",
            "codes": "Unit* __restrict__",
            "scales": "float* __restrict__",
        }
        strides = ("q_stride", "scale_token", "scale_block", "slots_stride", "scales_stride")
        sizes = (*strides, "rows", "tokens", "top", "parts", "blocks")
        return tuple(
            Param(name=name, ctype=ctype)
            for name, ctype in (pointers | dict.fromkeys(sizes, "int")).items()
        )

    def items(self, tokens: int, parts: int, blocks: int) -> int:
        """What threads are asked for: units to read, and scales."""
        return tokens * (parts + blocks)

    def tiles(self, tokens: int, parts: int, blocks: int) -> int:
        """CTAs that have something to do."""
        return -(-self.items(tokens, parts, blocks) // THREADS)


def source(spread: Spread) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC. Same spread, same bytes."""
    return plain("spreading/spread.cu.j2", kernel=spread)
