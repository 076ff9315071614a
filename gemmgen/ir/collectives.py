"""Collectives: what the GPUs of a launch make together of what each has, or computes (docs/adr/0049-reduce-scatter.md,
0051-all-gather.md, 0057-all-reduce.md).

A collective is orthogonal to the family, as a grouping is: the K loop is the same, the scheduler and what becomes of a tile's sum
differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ArgumentError
from .dtypes import BF16, F16
from .resources import Param

REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE = "reduce_scatter", "all_gather", "all_reduce"
WIRES = (BF16, F16)  # to what sums may be rounded before they travel
MOST_RANKS = 8  # of one host
MOST_CHUNKS = 32  # in which a rank sends its rows of A
# In how many a copy engine sends a rank its sums: of 1 to 4 on two H100s the quickest at three of four shapes (docs/adr/0058-outbox.md).
PARCELS = 2
CHUNK = 16 << 20  # bytes of A in one at least, unless it has all: copy engines start anew with each


def check_ranks(ranks: object, least: int = 1, name: str = "ranks") -> None:
    """Raise ArgumentError unless they are so many, and no more than one host has. name: of the argument."""
    if type(ranks) is not int or not least <= ranks <= MOST_RANKS:
        raise ArgumentError(name, ranks, f"must be an integer from {least} to {MOST_RANKS}")


def check_chunks(chunks: object) -> None:
    """Raise ArgumentError unless they are so many, and no more than there are flags for."""
    if type(chunks) is not int or not 1 <= chunks <= MOST_CHUNKS:
        raise ArgumentError("chunks", chunks, f"must be an integer from 1 to {MOST_CHUNKS}")


def chunks_for(size: int) -> int:
    """In how many to send rows of so many bytes: as many as have CHUNK each, one at least."""
    return max(1, min(MOST_CHUNKS, size // CHUNK))


RANKS = (Param(name="ranks", ctype="int"), Param(name="rank", ctype="int"))


@dataclass(frozen=True, kw_only=True)
class Collective:
    """scheduler: the device struct that walks its tiles; "" for the grouping's. params: the kernel's, besides the shape. rows: each
    rank's rows of A and D are a group's, as in a grouping with `rows`; M is then those of one rank. whole: each rank has all rows of A,
    and of D: M is those, and ranks are no groups. sums: what travels are sums, not rows."""

    says: str
    scheduler: str = ""
    params: tuple[Param, ...] = ()
    rows: bool = False
    whole: bool = False
    sums: bool = False

    @property
    def walked(self) -> tuple[str, ...]:
        """Those that the scheduler is made from. Where each rank has all rows it need not know how many there are."""
        return tuple(x.name for x in self.params if not self.whole or x.name == "rank")


COLLECTIVES = {
    "none": Collective(says="each launch by itself"),
    REDUCE_SCATTER: Collective(
        says="A [ranks * M, K] and B [N, K] of each rank's own K; rank r stores D [M, N], rows r * M on of the sum of all ranks'",
        scheduler="ranks",
        params=RANKS,
        sums=True,
    ),
    ALL_GATHER: Collective(
        says="A [M, K] of each rank's own rows and B [N, K] of its own columns; each rank stores D [ranks, M, N], all rows of its columns",
        scheduler="gathered",
        params=(*RANKS, Param(name="chunk_rows", ctype="int")),
        rows=True,
    ),
    ALL_REDUCE: Collective(
        says="A [M, K] and B [N, K] of each rank's own K; each rank stores D [M, N], the sum of all ranks', with the same bits",
        scheduler="alike",
        params=RANKS,
        whole=True,
        sums=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Which of how many ranks a launch is of."""

    rank: int = 0
    ranks: int = 1

    def owner(self, phase: int) -> int:
        """Whose rows it computes in this phase, one after the other: those of the rank behind it first, its own last."""
        return (self.rank + 1 + phase) % self.ranks

    def source(self, phase: int) -> int:
        """Whose rows of A it multiplies in this phase, where those are gathered: its own first, then those of the ranks behind it."""
        return (self.rank + phase) % self.ranks


SOLE = Seat()
