"""What every statement means to the agent that executes it, in operations.

A statement without a row in MEANING is an error, never skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..errors import IRError
from ..ir import nodes as ir
from ..ir.blocks import is_if
from ..ir.dealing import Part
from ..ir.verify import REGISTER_FIELDS
from . import ops
from .arrivals_meaning import await_signals
from .barrier_meaning import BARRIERS
from .conditions import HOLDS
from .copy_meaning import COPIES
from .exchange_meaning import EXCHANGE
from .instance import Post
from .load_meaning import load, load_blocks
from .map_meaning import MAPS
from .memory import Memory
from .noted import Noted
from .ops import OUTSIDE, Agent, Bar, Instance, Op
from .peek_meaning import PEEKS, Seen
from .store_meaning import STORES, whole
from .sync_meaning import SYNCS
from .taken import take, tiles


@dataclass(kw_only=True)
class Walk:
    """One agent's way through the statements: where it is, and what it did."""

    kernel: ir.Kernel
    memory: Memory
    accumulators: frozenset[str]  # registers that some Mma works on
    index: int
    agent: Agent
    instance: Instance
    cluster: int = 0  # which it is of those that share out the tiles
    ops: list[Op] = field(default_factory=list)
    stamps: list[Noted] = field(default_factory=list)
    start: int = 0
    tile: int = OUTSIDE
    k: int = OUTSIDE
    blocks: int = 0  # of the tile, K blocks that this CTA sums
    part: Part | None = None  # of it, where CTAs take stretches of K blocks
    post: Post | None = None  # which it is, where ranks add their sums up
    owed: Post | None = None  # the one whose flag is noted, not raised
    chunk: range = range(0)  # of those
    round: int = 0  # ring.advance() calls so far
    seen: Seen = field(default_factory=dict)
    row_cells: int = 0  # the first cell of rows that ranks send each other
    arrived: int = 0  # flags of such rows that it has seen: one more than the last's number
    share_end: int = 0  # the K block before which the running of a CTA's shares ends
    ahead: int = 0  # K blocks of the tile, announced and partly loaded before it was taken
    begun: int = 0  # groups of copies
    turn: int = 0  # tiles whose partial sums were exchanged, or that it took in turns
    met: bool = False  # it has awaited the CTAs of its cluster
    single: bool = False  # inside a leader's block: one thread, not whole warps

    def add(self, kind: Callable[..., Op], stmt: ir.Stmt, **fields: Any) -> None:
        place = {"tile": self.tile, "k": self.k, "single": self.single}
        self.ops.append(kind(stmt=stmt, **place, **fields))

    @property
    def threads(self) -> int:
        return 1 if self.single else self.agent.threads

    @property
    def warps(self) -> int:
        return 1 if self.single else len(self.agent.warps)

    @property
    def peers(self) -> range:
        """The CTAs of its cluster."""
        size = self.kernel.cluster.size
        first = self.agent.cta // size * size
        return range(first, first + size)

    def bar(self, name: str, lag: int = 0, cta: int | None = None) -> Bar:
        stage = (self.round - lag) % self.kernel.stages
        return name, self.agent.cta if cta is None else cta, stage

    def cells(self, stmt: ir.Stmt, cta: int | None = None) -> tuple[int, ...]:
        base = (self.agent.cta if cta is None else cta) * len(self.memory.names)
        found = self.memory.cells[id(stmt), self.index, self.round % self.kernel.stages]
        return tuple([base + c for c in found]) if base else found

    def touch(self, stmt: ir.Stmt) -> None:
        """A statement that works on registers: of interest are those a Multiply works on too."""
        named = (getattr(stmt, name, None) for name in REGISTER_FIELDS)
        found = tuple(r for r in named if r in self.accumulators)
        if found:
            self.add(ops.Touch, stmt, registers=found)


def walk(w: Walk, body: tuple[ir.Stmt, ...]) -> None:
    """Execute `body`. Raises IRError for a statement that has no meaning here."""
    for stmt in body:
        meaning = MEANING.get(type(stmt))
        if meaning is None:
            raise IRError(f"the proof does not know what {type(stmt).__name__} means")
        meaning(w, stmt)


def _for_tiles(w: Walk, s: ir.ForTiles) -> None:
    if s.of in OTHER_TILES:
        OTHER_TILES[s.of](w, s)
        return
    for tile in tiles(w):
        take(w, *tile)
        walk(w, s.body)
        w.ahead = 0 if s.ahead else w.ahead
    w.tile = OUTSIDE


def _for_turns(w: Walk, s: ir.ForTiles) -> None:
    for number, tile in enumerate(tiles(w)):
        if number % w.agent.turns != w.agent.warpgroup:
            w.round += tile[1]
            continue
        take(w, *tile)
        walk(w, s.body)
    w.tile = OUTSIDE


def _for_first(w: Walk, s: ir.ForTiles) -> None:
    """With a ring of its own: the other stands where it stood."""
    outer = w.round
    for tile in islice(tiles(w), 1):
        take(w, *tile)
        w.round = 0
        walk(w, s.body)
    w.tile, w.round = OUTSIDE, outer


OTHER_TILES: dict[str, Callable[[Walk, ir.ForTiles], None]] = {
    "turn": _for_turns,
    "first": _for_first,
    "run": lambda w, s: walk(w, s.body),  # here each tile is a run
}


def _for_chunks(w: Walk, s: ir.ForChunks) -> None:
    blocks = range(w.blocks)
    for first in blocks[:: s.blocks]:
        w.chunk = blocks[first : first + s.blocks]
        walk(w, s.body)


def _for_k(w: Walk, s: ir.ForK) -> None:
    if s.of == "slice":
        _for_slice(w, s)
        return
    # The only one is proved as the first trip of a loop, which is made even where there is nothing to wait for.
    spans = {
        "tile": range(w.blocks),
        "only": range(max(1, w.blocks)),
        "chunk": w.chunk,
        "ahead": range(w.blocks)[: w.kernel.stages],
    }
    for k in spans[s.of]:
        w.k = k
        walk(w, s.body)
        w.ahead += bool(s.ahead)
        w.round += 1
    w.k = OUTSIDE


def _for_slice(w: Walk, s: ir.ForK) -> None:
    """The others' K blocks go by in the ring."""
    w.round += w.agent.first
    for k in range(w.agent.first, w.blocks, w.agent.slices):
        w.k = k
        walk(w, s.body)
        w.round += w.agent.slices
    w.k = OUTSIDE


def _rejoin(w: Walk, s: ir.RejoinRing) -> None:
    w.round -= (w.agent.first - w.blocks) % w.agent.slices


def _leader(w: Walk, s: ir.If) -> None:
    whole_cta = is_if(s, "cta_leader")
    if w.agent.leads and not (whole_cta and w.agent.warpgroup):
        outer, w.single = w.single, True
        walk(w, s.body)
        w.single = outer


def _init(w: Walk, s: ir.InitBarrier) -> None:
    for stage in range(next(b.stages for b in w.kernel.barriers if b.name == s.barrier)):
        bar = (s.barrier, w.agent.cta, stage)
        w.add(ops.Init, s, bar=bar, count=s.arrivals)


def _mma(w: Walk, s: ir.Mma) -> None:
    sources = (s.decoded,) if isinstance(s, ir.MmaDecoded) else ()
    w.add(ops.Multiply, s, cells=w.cells(s), dst=s.dst, sources=sources)


def _read(w: Walk, s: Any) -> None:
    w.add(ops.Read, s, cells=w.cells(s))
    w.touch(s)


def _stage_tile(w: Walk, s: ir.StageTile | ir.ShareAmax) -> None:
    w.touch(s)
    w.add(ops.Write, s, cells=w.cells(s))


def _take_amax(w: Walk, s: ir.TakeAmax) -> None:
    w.add(ops.Read, s, cells=w.cells(s))


def _stamp(w: Walk, s: ir.Stamp) -> None:
    """Of the leader's warp. It writes where nobody else does and nobody reads."""
    if w.agent.leads:
        w.stamps.append(Noted(done=len(w.ops), event=s.event, tile=w.tile, k=w.k))


def _none(w: Walk, s: ir.Stmt) -> None:
    """Neither synchronises nor touches memory that others see."""


def _simple(kind: Callable[..., Op]) -> Callable[[Walk, Any], None]:
    return lambda w, s: w.add(kind, s)


def _when(holds: Callable[[Walk], bool]) -> Callable[[Walk, Any], None]:
    return lambda w, s: walk(w, s.body) if holds(w) else None


def _pending(kind: Callable[..., Op]) -> Callable[[Walk, Any], None]:
    return lambda w, s: w.add(kind, s, pending=s.pending)


CONDITIONS: dict[str, Callable[[Walk, Any], None]] = {
    **dict.fromkeys(("cta_leader", "leader"), _leader),
    "whole": lambda w, s: walk(w, s.body) if whole(w, s) else None,
    "cut": lambda w, s: None if whole(w, s) else walk(w, s.body),
    "begun": lambda w, s: walk(w, s.body) if w.begun > s.more else None,
    **{when: _when(holds) for when, holds in HOLDS.items()},
}
MEANING: dict[type[ir.Stmt], Callable[[Walk, Any], None]] = {
    ir.ForTiles: _for_tiles,
    ir.ForChunks: _for_chunks,
    ir.ForK: _for_k,
    ir.RejoinRing: _rejoin,
    ir.PerSplit: lambda w, s: walk(w, s.body),  # one of the copies
    ir.If: lambda w, s: CONDITIONS[s.when](w, s),
    ir.InitBarrier: _init,
    **SYNCS,
    **BARRIERS,
    ir.TmaLoad: load,
    **COPIES,
    **MAPS,
    **EXCHANGE,
    ir.AwaitSignals: await_signals,
    **PEEKS,
    ir.LoadBlocks: load_blocks,
    ir.Mma: _mma,
    ir.MmaDecoded: _mma,
    ir.Decode: Walk.touch,
    ir.WgmmaCommit: _simple(ops.Commit),
    ir.WgmmaWait: _pending(ops.Retire),
    **dict.fromkeys((ir.LoadRowScales, ir.LoadColumnScales, ir.ReadCodes, ir.SumSquares), _read),
    **dict.fromkeys((ir.AddSquares, ir.Copy, ir.LoadBlockScales, ir.ShareScales), Walk.touch),
    **dict.fromkeys((ir.Accumulate, ir.Promote), Walk.touch),
    # Global memory that no launch writes, and registers of the thread.
    **dict.fromkeys((ir.LoadFragments, ir.MultiplyFragments), _none),
    **dict.fromkeys((ir.LoadIndices, ir.LoadPages), _none),
    **dict.fromkeys((ir.Evaluate, ir.RowAmax, ir.Normalise), Walk.touch),
    ir.StageTile: _stage_tile,
    ir.ShareAmax: _stage_tile,
    ir.TakeAmax: _take_amax,
    **STORES,
    ir.StoreCommit: _simple(ops.StoreCommit),
    ir.StoreWait: _pending(ops.StoreWait),
    ir.Stamp: _stamp,
    **dict.fromkeys((ir.OpenStamps, ir.StampTile, ir.CloseStamps), _none),
    ir.PrefetchMap: _none,
    ir.LaunchDependents: _none,
    ir.WaitForGrids: _none,  # dependency.py
    ir.SetRegisters: _none,  # registers.py
}
