"""Kernel IR statements of a tile whose K several CTAs divide among them; split_k and stream_k insert them.

Of `partials`, a buffer of rank 0 or a workspace in global memory, each sender owns a slot: its accumulators register by
register, so the same register of the same thread is the same element of the tile in every CTA. A barrier of tiles has
one phase per tile; `turn` names the register that holds the running tile's parity.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from .blocks import Stmt
from .resources import UNUSUAL, Watch

# By what sums go to another CTA: shared memory of the cluster (split_k), or global memory (stream_k).
Through = Literal["cluster", "memory"]
PARTIALS = "partials"  # the kernel's parameter that points to its workspace


@dataclass(frozen=True, kw_only=True)
class TakeShare(Stmt):
    """From here on the tile has this CTA's K blocks only: ceil(blocks / CTAs) from rank * that on, or
    what is left, which may be none."""


@dataclass(frozen=True, kw_only=True)
class SendPartials(Stmt):
    """The accumulator `src` of `wave` into this CTA's slot. cluster: of rank 0, where its bytes complete on `barrier`.
    memory: of the workspace; then each warp raises its flag of this wave."""

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
    them down."""

    spelled_by: ClassVar[str] = "through"

    dst: str
    smem: str = field(default="", metadata=UNUSUAL)
    wave: int
    through: Through = field(default="cluster", metadata=UNUSUAL)
    unroll: int = field(default=1, metadata=UNUSUAL)
    watch: Watch | tuple[()] = field(default=(), metadata=UNUSUAL)  # guard_waits, of one that waits


@dataclass(frozen=True, kw_only=True)
class NextTurn(Stmt):
    """The next tile's phases have the other parity."""

    turn: str
