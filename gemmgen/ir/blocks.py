"""Kernel IR statements that hold other statements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stmt:
    """Base of all statements. Each subclass has one macro of the same name in stmts.j2."""


@dataclass(frozen=True, kw_only=True)
class ForTiles(Stmt):
    """Every output tile the scheduler gives this CTA."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class ForK(Stmt):
    """Every K block of the tile, `unroll` of them per trip of the emitted loop; advances the ring,
    whose position carries across tiles."""

    body: tuple[Stmt, ...]
    unroll: int = 1


@dataclass(frozen=True, kw_only=True)
class AfterFirst(Stmt):
    """Inside ForK: every K block but the tile's first."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class IfRows(Stmt):
    """Work on this warpgroup's 64 rows of `wave`, unless the tile's group ends before them; skip_rows."""

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


BLOCKS = (
    ForTiles,
    ForK,
    AfterFirst,
    IfRows,
    CtaLeader,
    WarpgroupLeader,
    FirstWarp,
    NewGroup,
    IfBlocks,
)
