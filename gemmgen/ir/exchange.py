"""Kernel IR statements of a tile whose sum several CTAs have parts of; split_k, stream_k, scatter_rows and reduce_all insert them;
or one CTA, part by part (add_shares), or several of its warpgroups (slice_k).

Of `partials`, a buffer of rank 0, a workspace in global memory, or memory of the GPU that stores the tile, each sender owns
a slot: its accumulators register by register, so the same register of the same thread is the same element of the tile in every
CTA. A barrier of tiles has one phase per tile; `turn` names the register that holds the running tile's parity.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from .blocks import Stmt
from .resources import UNUSUAL, Watch

# By what sums go to another CTA: shared memory of the cluster (split_k), global memory (stream_k), another GPU's
# (scatter_rows), or each GPU's (reduce_all); or to another warpgroup: the CTA's own shared memory (slice_k).
Through = Literal["cluster", "memory", "ranks", "every_rank", "cta"]
PARTIALS = (
    "partials"  # the kernel's parameter that points to its workspace, or to a table of all ranks'
)


@dataclass(frozen=True, kw_only=True)
class TakeShare(Stmt):
    """A part of the tile's K blocks: ceil(blocks / parts) from so many of those on, or what is left, which may be none.

    cluster: from here on the tile has this CTA's only, the one of its rank. Where one CTA sums `Kernel.shares` parts, one after the other
    (add_shares), a register notes the K block before which the running one ends: first, of the first; next, of the one after."""

    spelled_by: ClassVar[str] = "of"

    of: Literal["cluster", "first", "next"] = field(default="cluster", metadata=UNUSUAL)
    dst: str = field(default="", metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class SendPartials(Stmt):
    """The accumulator `src` of `wave` into this CTA's slot. cluster: of rank 0, where its bytes complete on `barrier`.
    memory: of the workspace; then each warp raises its flag of this wave. ranks: of the rank that has the tile's rows, in
    the buffer of its memory that belongs to this epoch. every_rank: of each rank, this one too. cta: of this warpgroup, of which all but the
    first have one."""

    spelled_by: ClassVar[str] = "through"

    src: str
    smem: str = field(default="", metadata=UNUSUAL)
    barrier: str = field(default="", metadata=UNUSUAL)
    wave: int
    through: Through = field(default="cluster", metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class AddPartials(Stmt):
    """dst += the others' accumulators of `wave`, in order of their K blocks. cluster: of the other ranks. memory: of the
    CTAs that have the rest of the tile, those of `unroll` at a time; before that each warp waits for their flags, and takes
    them down. ranks: of the other ranks, from the one after this on, where an AwaitSignals has seen that they are there. every_rank: of all ranks, from rank 0 on, this one's as it
    sent them. cta: of the other warpgroups, from the second on."""

    spelled_by: ClassVar[str] = "through"

    dst: str
    smem: str = field(default="", metadata=UNUSUAL)
    wave: int
    through: Through = field(default="cluster", metadata=UNUSUAL)
    unroll: int = field(default=1, metadata=UNUSUAL)
    watch: Watch | tuple[()] = field(default=(), metadata=UNUSUAL)  # guard_waits, of one that waits


@dataclass(frozen=True, kw_only=True)
class Signal(Stmt):
    """Each warp says to the rank that has a tile's rows that its sums of the tile are there: its flag becomes this epoch. noting:
    not yet; `owed` notes which flag that is of this tile. raising: now, the flag that `owed` notes; then it notes none. telling: now, to
    every other rank, of this tile. counting: where a copy engine sends them, now, each warp counts itself in the parcel of the tile
    that `owed` notes, and the last of those raises the parcel's flag, in this GPU's memory; then it notes none."""

    spelled_by: ClassVar[str] = "by"

    by: Literal["noting", "raising", "telling", "counting"]
    owed: str = field(default="", metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class AwaitSignals(Stmt):
    """Wait until other ranks' flags say this epoch or a later one. sums: each warp for that of the same warp of every other rank:
    its sums of this tile are there. parcels: for that of the tile's parcel, from every other rank. rows: the thread for that of the tile's last rows of A: they are there, and with them all
    that their sender sent before (gather_rows); `seen`: a register, from then on one more than the flag's number."""

    spelled_by: ClassVar[str] = "of"

    of: Literal["sums", "parcels", "rows"] = field(default="sums", metadata=UNUSUAL)
    seen: str = field(default="", metadata=UNUSUAL)
    watch: Watch | tuple[()] = field(default=(), metadata=UNUSUAL)  # guard_waits


@dataclass(frozen=True, kw_only=True)
class Epoch(Stmt):
    """The number of the running launch, which this rank's own memory keeps, so that a launch may be replayed. reading: by each thread; it is
    one more than that of the launch before. passing: by one thread of each CTA, all of which have read it; the last of the launch's
    CTAs writes it there, for the next launch."""

    spelled_by: ClassVar[str] = "by"

    by: Literal["reading", "passing"]


@dataclass(frozen=True, kw_only=True)
class NextTurn(Stmt):
    """The next tile's phases have the other parity."""

    turn: str
