"""Kernel IR statements that hold other statements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .resources import UNUSUAL


@dataclass(frozen=True, kw_only=True)
class Stmt:
    """Base of all statements. Each subclass has one macro of the same name in stmts.j2."""


@dataclass(frozen=True, kw_only=True)
class ForTiles(Stmt):
    """Every output tile the scheduler gives this CTA."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class ForTurns(ForTiles):
    """Every output tile of which it is this warpgroup's turn: each of the role's takes the next. The ring passes
    over the others' K blocks; take_turns."""


@dataclass(frozen=True, kw_only=True)
class ForChunks(Stmt):
    """The tile's K blocks, `blocks` at a time: the ForK inside runs over a chunk of them."""

    blocks: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class ForK(Stmt):
    """Every K block of the tile, or of the chunk, `unroll` of them per trip of the emitted loop; advances the
    ring, whose position carries across tiles."""

    body: tuple[Stmt, ...]
    unroll: int = 1
    of: Literal["tile", "chunk"] = field(default="tile", metadata=UNUSUAL)


@dataclass(frozen=True, kw_only=True)
class PerSplit(Stmt):
    """Inside ForTiles: a copy of the body per column `split`, a multiple of `step`, where the tile's second scale
    block can begin: a constant in each."""

    step: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class AfterFirst(Stmt):
    """Inside ForK: every K block but the tile's first."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class IfWhole(Stmt):
    """Unless D's rows (a ragged group's) end before this warpgroup's piece of `wave` does."""

    wave: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class IfCut(Stmt):
    """Where IfWhole does nothing."""

    wave: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class CtaLeader(Stmt):
    """One fixed thread of the CTA."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class WarpgroupLeader(Stmt):
    """One fixed thread of each of the role's warpgroups."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class FirstWarp(Stmt):
    """The first warp of each of the role's warpgroups, all of its lanes; derive_maps."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class NewGroup(Stmt):
    """Inside ForTiles: this CTA's first tile of a group that has K blocks; derive_maps."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class IfBlocks(Stmt):
    """Inside ForTiles: unless the tile has no K block; allow_empty."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class IfSends(Stmt):
    """Where CTAs divide K: every rank but 0, whose partial sums go to another; split_k."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class IfFinishes(Stmt):
    """Where CTAs divide K: rank 0, which has the whole sum and stores the tile; split_k."""

    body: tuple[Stmt, ...]


BLOCKS = (
    ForTiles,
    ForTurns,
    ForChunks,
    ForK,
    PerSplit,
    AfterFirst,
    IfWhole,
    IfCut,
    CtaLeader,
    WarpgroupLeader,
    FirstWarp,
    NewGroup,
    IfBlocks,
    IfSends,
    IfFinishes,
)
