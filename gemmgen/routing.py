"""Kernels that give copies of tokens rows by expert: what they are, and their CUDA source.

A token is copied to each expert that it chose; `gemmgen.ops.route` says where copies lie. One launch of one cluster
counts, adds up and writes: no `Kernel` either, as `gemmgen.casts` (docs/adr/0060-routes.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from .emit import CLUSTER, MEMORY, plain
from .errors import IRError
from .ir.resources import Param

IDS = {32: "int", 64: "long long"}  # by their bits
CTAS = 8  # what every Hopper GPU runs as one cluster
THREADS = 512
MOST_EXPERTS = THREADS  # a thread adds up an expert's copies
AHEAD = 8  # ids that a lane has on their way at once

POINTERS = (
    Param(name="slots", ctype="int* __restrict__"),
    Param(name="copies", ctype="int* __restrict__"),
    Param(name="ends", ctype="int* __restrict__"),
)
SIZES = tuple(
    Param(name=name, ctype="int")
    for name in ("n", "top", "pitch", "first", "local", "alignment", "rows")
)


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Ids of experts, `top` for each token -> the row of each copy, the copy of each row, where experts' rows end.

    bits: of an id, a signed integer: 32 or 64.

    Everything but these is an argument of the kernel. n: copies, at least 1. pitch: ids from one token's to the next's. first,
    local: the experts that have rows, 1 to 512 of them. rows: in all, at least as many as `rows_of` says. Raises IRError.
    """

    bits: int

    def __post_init__(self) -> None:
        if self.bits not in IDS:
            raise IRError(f"no routing of {self.bits} bits")

    @property
    def name(self) -> str:
        """The kernel's, of all fields."""
        return f"route_s{self.bits}"

    @property
    def id(self) -> str:
        return IDS[self.bits]

    @property
    def threads(self) -> int:
        """Of a CTA."""
        return THREADS

    @property
    def ctas_per_sm(self) -> int:
        return 1

    @property
    def ahead(self) -> int:
        return AHEAD

    @property
    def ctas(self) -> int:
        """Of the one cluster that is launched."""
        return CTAS

    @property
    def params(self) -> tuple[Param, ...]:
        """In the order of the kernel's."""
        return Param(name="chosen", ctype="const Id* __restrict__"), *POINTERS, *SIZES


def source(routing: Routing) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC. Same routing, same bytes."""
    return plain("routing/route.cu.j2", (MEMORY, *CLUSTER), routing=routing)
