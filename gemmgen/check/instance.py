"""How often a kernel's loops run in what is proved of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..ir.collectives import Seat
from ..ir.dealing import Part, of_cta, parts


@dataclass(frozen=True, kw_only=True)
class Post:
    """A tile that a rank computes: in the rows of `owner`, where it is the other rank `place` (-1: it is the owner), and there
    the `number`-th. tile: by which it is told from all others."""

    tile: int
    owner: int
    place: int
    number: int


@dataclass(frozen=True, kw_only=True)
class Instance:
    """How often the loops run: K blocks per tile, tiles per CTA; every CTA of the cluster alike.

    depths: the K blocks of each tile, where groups have K of their own; neighbours with equally many
    are in one group. `k_blocks` is then the most.
    cut: the tiles in whose every piece D's rows (a ragged group's) end. rows: instead, of each CTA of the cluster
    and each of its tiles, how many rows D has from the tile's first on.
    ctas: where each takes a stretch of all tiles' K blocks, how many. `tiles` are then those of all together.
    ranks: GPUs that add their sums up. `tiles` are then those of each rank's rows, and `ctas` how many clusters each rank has.
    epochs: of the launches on each rank, one after the other.
    chunks: where ranks send each other their rows of A instead, in how many. `tiles` are then those of the rows of each, on every rank.
    every: ranks add up all sums, of all tiles: each stores all of `tiles`.
    parcels: where copy engines send those sums, in how many a rank's at most.
    """

    k_blocks: int
    tiles: int
    depths: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    rows: tuple[tuple[int, ...], ...] = ()
    ctas: int = 1
    ranks: int = 1
    epochs: tuple[int, ...] = (1,)
    chunks: int = 0
    every: bool = False
    parcels: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """K blocks by tile."""
        return self.depths or (self.k_blocks,) * self.tiles

    def parts(self, cta: int) -> tuple[Part, ...]:
        """What a CTA has of the tiles, where they take stretches."""
        return tuple(
            parts(of_cta(cta, self.ctas, self.tiles), self.ctas, self.tiles, self.k_blocks)
        )

    def posts(self, rank: int, launch: int, cluster: int) -> tuple[Post, ...]:
        """What a rank's cluster has of all ranks' tiles in a launch, in its order: every `ctas`-th."""
        seat = Seat(rank=rank, ranks=self.ranks)
        phases = [(phase, seat.owner(phase), self.ranks - 2 - phase) for phase in range(self.ranks)]
        if self.chunks:
            phases = [(phase, seat.source(phase), phase - 1) for phase in range(self.ranks)]
        if self.every:
            phases = [(0, rank, -1)]
        return tuple(
            Post(
                tile=self.tile(launch, rank, owner, number),
                owner=owner,
                place=place,
                number=number,
            )
            for phase, owner, place in phases
            for number in range(self.tiles)
            if (phase * self.tiles + number) % self.ctas == cluster
        )

    def tile(self, launch: int, rank: int, owner: int, number: int) -> int:
        """One number for a tile of a launch: where ranks add their sums up, the same on all of them."""
        if self.every:
            return launch * self.tiles + number
        of = launch * self.ranks + rank if self.chunks else launch
        return (of * self.ranks + owner) * self.tiles + number

    @property
    def together(self) -> int:
        """How many tiles such numbers tell apart."""
        return self.tile(len(self.epochs), 0, 0, 0)

    def storer(self, tile: int) -> int:
        """The rank that stores it: in whose rows it is, or whose it is alone."""
        return tile // (self.tiles * (self.ranks if self.chunks else 1)) % self.ranks

    def chunks_of(self, number: int) -> range:
        """Those in which a tile's rows come: tiles and chunks are equal parts of a rank's rows."""
        return range(
            number * self.chunks // self.tiles, -(-(number + 1) * self.chunks // self.tiles)
        )

    def group(self, tile: int) -> int:
        return sum(a != b for a, b in pairwise(self.counts[: tile + 1]))

    def opens(self, tile: int) -> bool:
        """Whether the tile is the first of a group that has K blocks."""
        first = tile == 0 or self.group(tile) != self.group(tile - 1)
        return first and self.counts[tile] > 0

    def __str__(self) -> str:
        if self.depths:
            return f"{', '.join(map(str, self.depths))} K blocks in the tiles of each CTA"
        if self.ranks > 1:
            tiles, launches = _many(self.tiles, "tile"), _many(len(self.epochs), "launch", "es")
            each = f"{tiles} {'on' if self.every else 'in the rows of'} each of {self.ranks} ranks"
            by = f" of {self.ctas} clusters" * (self.ctas > 1)
            by += f", sent in {_many(self.chunks, 'chunk')}" * bool(self.chunks)
            by += f", sent in {_many(self.parcels, 'parcel')}" * bool(self.parcels)
            return f"{_many(self.k_blocks, 'K block')} per tile, {each}{by}, {launches}"
        cut = f", rows end in tiles {', '.join(map(str, self.cut))}" if self.cut else ""
        if self.ctas > 1:
            dealt = f"{_many(self.tiles, 'tile')} dealt out to {self.ctas} CTAs"
            return f"{_many(self.k_blocks, 'K block')} per tile, {dealt}{cut}"
        per_cta = _many(self.tiles, "tile")
        return f"{_many(self.k_blocks, 'K block')} per tile, {per_cta} per CTA{cut}"


def _many(n: int, what: str, more: str = "s") -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}{more}"
