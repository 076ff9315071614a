"""Kernel IR statements that hold other statements."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal, TypeGuard

from .resources import UNUSUAL


@dataclass(frozen=True, kw_only=True)
class Stmt:
    """Base of all statements. Each subclass has one macro of the same name in stmts.j2, or one for each value of the
    field `spelled_by`."""

    spelled_by: ClassVar[str] = ""


@dataclass(frozen=True, kw_only=True)
class ForTiles(Stmt):
    """Every output tile the scheduler gives this CTA; `of` a turn, those of which it is this warpgroup's: each of the
    role's takes the next, and the ring passes over the others' K blocks; `of` the first, that tile alone, if there is one: it
    is not taken, nor does the ring move on. `of` runs, of neighbours that have the same rows, each once, before its first tile; and `of` a run, inside of these, its
    tiles, by whole warps, whose lanes are told alike how many K blocks each has. `ahead`: a register that is 0 after a tile."""

    spelled_by: ClassVar[str] = "of"

    # take_turns, load_ahead, join_parts
    of: Literal["cta", "turn", "first", "runs", "run"] = field(default="cta", metadata=UNUSUAL)
    ahead: str = field(default="", metadata=UNUSUAL)  # load_ahead
    body: tuple[Stmt, ...]


def of_run(s: Stmt) -> bool:
    """Whether `s` stands in another ForTiles, and takes a run's tiles."""
    return isinstance(s, ForTiles) and s.of == "run"


def of_each(s: ForTiles) -> tuple[Stmt, ...]:
    """Of its body, what is done for each tile, and not once for a run."""
    return tuple(filter(of_run, s.body)) if s.of == "runs" else s.body


@dataclass(frozen=True, kw_only=True)
class ForChunks(Stmt):
    """The tile's K blocks, `blocks` at a time: the ForK inside runs over a chunk of them."""

    blocks: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class ForK(Stmt):
    """Every K block of the tile, or of the chunk, `unroll` of them per trip of the emitted loop; advances the
    ring, whose position carries across tiles. `of` the only one: K has no more (one_block), and there is no loop. `of` those to be ahead: as many of the tile's first as the ring has
    stages, which the register `ahead` counts; of a slice, every so-many-th of the tile's, as many as the role has warpgroups, from
    this warpgroup's on: the others' go by in the ring, which stands behind the last of them (slice_k)."""

    spelled_by: ClassVar[str] = "of"

    body: tuple[Stmt, ...]
    unroll: int = 1
    of: Literal["tile", "chunk", "ahead", "slice", "only"] = field(default="tile", metadata=UNUSUAL)
    ahead: str = field(default="", metadata=UNUSUAL)  # load_ahead


@dataclass(frozen=True, kw_only=True)
class PerSplit(Stmt):
    """Inside ForTiles: a copy of the body per column `split`, a multiple of `step`, where the tile's second scale
    block can begin: a constant in each."""

    step: int
    body: tuple[Stmt, ...]


# Who executes what an If holds, or where. Inside ForK, after_first: every K block but the tile's first; behind: every one
# but as many first ones as the register `ahead` says (load_ahead); new_share: the one that the register `ahead` says, with which another
# share of K begins than the tile's first (add_shares). Inside ForTiles,
# new_group: this CTA's first tile of a group that has K blocks (derive_maps); has_blocks: unless the tile has none
# (allow_empty); no_blocks: where it has none; where CTAs divide K (split_k), sends: every rank but 0, whose partial sums go to another; finishes: rank 0,
# which has the whole sum and stores the tile; where each has an equal stretch of all tiles' K blocks (stream_k), inside: of a
# tile that begins before its stretch does, whose partial sums go to another; head: of one that begins in it, which it stores;
# where ranks add their sums up (scatter_rows), theirs: of a tile in another rank's rows; ours: in this one's, which it stores.
# awaited: where the flag of the tile's last rows, which come from another rank, is not among those that the register `ahead` counts
# (gather_rows).
# owes: where the register `ahead` notes a flag that is not raised yet (scatter_rows).
# begun: where more than `more` groups of copies were begun, which the register `ahead` counts (index_rows).
# first_slice: the first of the warpgroups that divide a tile's K blocks, which stores it; other_slice: every other; idle: who has no K blocks of the tile (slice_k). Of such
# after_first and has_blocks ask about the warpgroup's own K blocks.
# whole: unless D's rows (a ragged group's) end before this warpgroup's piece of `wave` does; cut: where they do.
Condition = Literal[
    "cta_leader",  # one fixed thread of the CTA
    "leader",  # one fixed thread of each of the role's warpgroups
    "first_warp",  # of each of the role's warpgroups, all of its lanes
    "after_first",
    "behind",
    "new_share",
    "new_group",
    "has_blocks",
    "no_blocks",
    "whole",
    "cut",
    "sends",
    "finishes",
    "inside",
    "head",
    "theirs",
    "ours",
    "awaited",
    "owes",
    "begun",
    "first_slice",
    "other_slice",
    "idle",
]


@dataclass(frozen=True, kw_only=True)
class If(Stmt):
    """Its body where `when` holds; wave: of the piece that whole and cut ask about; ahead: the register that behind,
    new_share, awaited, owes and begun ask; more: than how many groups begun asks."""

    when: Condition
    wave: int = field(default=0, metadata=UNUSUAL)
    ahead: str = field(default="", metadata=UNUSUAL)
    more: int = field(default=0, metadata=UNUSUAL)
    body: tuple[Stmt, ...]


def is_if(s: Stmt, *when: Condition) -> TypeGuard[If]:
    """Whether `s` is an If of one of these conditions."""
    return isinstance(s, If) and s.when in when


BLOCKS = (
    ForTiles,
    ForChunks,
    ForK,
    PerSplit,
    If,
)


@dataclass(frozen=True, kw_only=True)
class Parts(Stmt):
    """Statements by what they are for, so that a pass finds them by name. It stands for them in the order of its fields:
    no text of the IR and no macro has it, and `join_parts` leaves none."""

    @property
    def body(self) -> tuple[Stmt, ...]:
        return tuple(s for f in fields(self) for s in getattr(self, f.name))


@dataclass(frozen=True, kw_only=True)
class TileBody(Parts):
    """What a role does for a tile. run: once for neighbours of the same rows, which this CTA takes one after the other; setup: before
    its K blocks; main: the loop over them; drain: what that left in flight; epilogue: D, of the sums."""

    run: tuple[Stmt, ...] = ()
    setup: tuple[Stmt, ...] = ()
    main: tuple[Stmt, ...]
    drain: tuple[Stmt, ...] = ()
    epilogue: tuple[Stmt, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Piece(Parts):
    """What a K block is multiplied in: a commit group of wgmma. loads: of scales that its promotion reads; products: from
    their fence to their commit; wait: until they are done; release: of a stage, by its last reader; promote: the partial
    sums, out of the tensor core's accumulator."""

    loads: tuple[Stmt, ...] = ()
    products: tuple[Stmt, ...] = ()
    wait: tuple[Stmt, ...] = ()
    release: tuple[Stmt, ...] = ()
    promote: tuple[Stmt, ...] = ()


HOLDING = (*BLOCKS, Parts)  # what has a body
