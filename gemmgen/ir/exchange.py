"""Kernel IR statements of a tile whose K the CTAs of a cluster divide among them; split_k inserts them.

Of `partials`, a buffer of rank 0, each other rank owns a slot: its accumulators register by register, so
the same register of the same thread is the same element of the tile in every CTA. A barrier of tiles has
one phase per tile; `turn` names the register that holds the running tile's parity.
"""

from __future__ import annotations

from dataclasses import dataclass

from .blocks import Stmt


@dataclass(frozen=True, kw_only=True)
class TakeShare(Stmt):
    """From here on the tile has this CTA's K blocks only: ceil(blocks / CTAs) from rank * that on, or
    what is left, which may be none."""


@dataclass(frozen=True, kw_only=True)
class SendPartials(Stmt):
    """The accumulator `src` of `wave` into this rank's slot of rank 0; its bytes complete on `barrier`
    there."""

    src: str
    smem: str
    barrier: str
    wave: int


@dataclass(frozen=True, kw_only=True)
class AddPartials(Stmt):
    """dst += the other ranks' accumulators of `wave`, in order of rank."""

    dst: str
    smem: str
    wave: int


@dataclass(frozen=True, kw_only=True)
class NextTurn(Stmt):
    """The next tile's phases have the other parity."""

    turn: str
