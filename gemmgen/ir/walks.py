"""Kernel IR resources of a launch's CTAs: which tiles each walks, and the memory by which they, and those of other GPUs, hand
sums over."""

from __future__ import annotations

from dataclasses import dataclass, field

from .dtypes import DType
from .resources import UNUSUAL, Axis


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """A device struct in templates/schedulers/<name>.j2 with `bool next(Tile&)`: which grids of tiles there are. `order`:
    in which their tiles come, of `gemmgen.ir.orders`. `params`: the kernel's parameters that it is made from, after
    the shape."""

    name: str
    fast: Axis  # the axis a panel spans: neighbours in time differ in it
    slow: Axis
    panel: int  # tiles (of a cluster) along `fast`
    order: str
    params: tuple[str, ...] = ()
    alignment: int = 0  # of the rows where groups begin, if they lie in one tensor
    shares: bool = False  # CTAs note in the tile where their share of K begins; split_k
    streams: bool = False  # CTAs take equal stretches of all tiles' K blocks; stream_k
    summed: bool = False  # a tile's K blocks are those of all groups, one group's after the other's

    @property
    def windowed(self) -> bool:
        """Whether tiles that no row's window reaches have no K blocks."""
        return self.name in WINDOWS.values()

    @property
    def bounds(self) -> tuple[str, ...]:
        """Of windows, the parameters: where each row's begins, if not at 0, then where each ends."""
        return tuple(x for x in self.params if x != COUNT) if self.windowed else ()

    @property
    def longest_run(self) -> int:
        """Of windows, the neighbouring tiles that a cluster takes at once, at most."""
        return LONGEST_RUNS[self.name]

    @property
    def least_runs(self) -> int:
        """Of windows, the runs that each cluster has at least, unless they are of one tile."""
        return LEAST_RUNS

    def run(self, tiles: int, clusters: int) -> int:
        """Of windows, the neighbouring tiles that each of `clusters` takes at once, of so many in all."""
        return min(self.longest_run, max(1, tiles // (clusters * self.least_runs)))

    @property
    def reach(self) -> str:
        """Of windows, the template of what asks where they begin and end."""
        return {1: "until", 2: "between"}[len(self.bounds)]

    @property
    def walk(self) -> str:
        """The template of the struct that walks."""
        return "stream_" * self.streams + self.name

    @property
    def tile(self) -> str:
        """The template of the struct it fills in for each tile."""
        of = "split_" * self.shares + "stream_" * self.streams
        return of + TILES.get(self.name, "grouped_tile")


COUNT = "groups"
# By the scheduler of what has no windows.
WINDOWS = {"panels": "windows", "batched": "batched_windows"}
# On an H200, 2048 queries x 8192 keys in runs of at most 4, 8, 16: 235, 219, 209 us; 64 sequences of about 65536 keys: 185, 200, 204,
# for lengths differ and long runs are shared out worse.
LONGEST_RUNS = {WINDOWS["panels"]: 16, WINDOWS["batched"]: 4}
LEAST_RUNS = 4
# By scheduler; the others fill in groups' rows.
TILES = {
    **dict.fromkeys(("panels", WINDOWS["panels"]), "tile"),
    "depths": "depth_tile",
    "ranks": "ranked_tile",
    "alike": "ranked_tile",
    "gathered": "gathered_tile",
}


@dataclass(frozen=True)
class Tile:
    """What the device's Tile holds: rows of A, B and D, the column of D (elements) and K blocks.
    In a grouped launch also the group, and the row of D where it ends; where groups split K, the K
    that this one sums, which of the launch's sets of tensor maps is this CTA's for it, and whether
    the tile is the CTA's first of a group that has K. Where CTAs take stretches of K blocks, those of the stretch, the K where they
    begin, the CTA's slot for sums, and how many others have the rest. Where ranks add their sums up: the rank that has its rows, and
    there which of the other ranks this one is, -1 in its own; the tile's number among its owner's, and how many those are. Where rows
    of A are gathered, `group` is the rank whose they are, and `flag` the number of the flag that says that they are there."""

    a_row: int
    b_row: int
    d_row: int
    d_col: int
    k_blocks: int
    group: int = 0
    d_end: int = 0
    k_first: int = 0
    k_end: int = 0
    slot: int = 0
    opens_group: bool = False
    others: int = 0
    owner: int = 0
    place: int = 0
    slots: int = 0
    flag: int = 0


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Global memory by which CTAs hand sums over, in words of 32 bits, for each CTA of a launch one behind the other: a
    slot of so many registers, then so many flags. Flags are down (0) before a launch, and down again after it."""

    slot: int = 0
    flags: int = 0

    @property
    def words(self) -> int:
        """Of a CTA: flags of two have no line of 128 bytes in common."""
        return self.slot + -(-self.flags // 32) * 32


NO_WORKSPACE = Workspace()


@dataclass(frozen=True, kw_only=True)
class Peers:
    """What the ranks of a launch on several GPUs hand over of each tile: a slot of so many words of 32 bits, and so many
    flags of 64 bits, each the epoch of the launch whose sums are there. Slots are there so many times, of which launches
    take one after the other. wire: 16 bits to which sums are rounded before they travel, two in a word (None: a word has one as
    it is). every: each rank has slots of every rank, its own first, of all tiles; else of the others, of its own tiles. parcels: where
    a copy engine sends them, in how many at most, each of the tiles that come one after the other; each has a flag of its own then, and
    `flags` are those who count themselves in it (0: a CTA sends each tile, and raises its flags)."""

    slot: int = 0
    flags: int = 0
    buffers: int = 2
    wire: DType | None = field(default=None, metadata=UNUSUAL)
    every: bool = field(default=False, metadata=UNUSUAL)
    parcels: int = field(default=0, metadata=UNUSUAL)

    @property
    def per_word(self) -> int:
        """Registers of sums in a word."""
        return 1 if self.wire is None else 2

    def senders(self, ranks: int) -> int:
        """Ranks of which each has slots."""
        return ranks if self.every else ranks - 1

    def parts(self, ranks: int) -> int:
        """In which they share out the rows of A; one where every rank has all."""
        return 1 if self.every else ranks


NO_PEERS = Peers()
