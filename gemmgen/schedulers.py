"""Schedulers: which grids of output tiles a persistent launch walks, one after the other.

Each has a device struct in templates/schedulers/ and a Python twin here; tests hold the two together. In which order a grid's tiles
come is one of `gemmgen.ir.orders`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count
from math import prod

from .ir.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    COLLECTIVES,
    MOST_CHUNKS,
    REDUCE_SCATTER,
    SOLE,
    Collective,
    Seat,
)
from .ir.dealing import of_cta, parts
from .ir.groupings import (
    ALONE,
    GROUPINGS,
    SEGMENTS,
    Grouping,
    Layout,
    Segment,
    in_turn,
    summed_k,
)
from .ir.nodes import Block, Cluster, Scheduler
from .ir.orders import PANELS, place
from .ir.walks import TILES, WINDOWS
from .ir.walks import Tile as Tile

RANKS = COLLECTIVES[REDUCE_SCATTER].scheduler
GATHERED = COLLECTIVES[ALL_GATHER].scheduler
ALIKE = COLLECTIVES[ALL_REDUCE].scheduler
RUNS = "runs"  # of `rows`: the scheduler of tiles that may reach past a group's end


def panels(
    raster: str,
    panel: int,
    grouping: Grouping = GROUPINGS["none"],
    alignment: int = 0,
    order: str = PANELS,
    rows: int = 1,
    together: Collective = COLLECTIVES["none"],
    bounds: tuple[str, ...] = (),
) -> Scheduler:
    """Panels of `panel` tiles along the raster axis, walked to and fro (snake) along the other: of D,
    or of each group's part of it; or another order of tiles. `alignment`: of the rows where groups begin, if they
    share A's. `rows`: of a cluster's tiles: where each row says its group, they are walked run by run unless they divide
    the alignment. together: what ranks make of it: each other's rows then come before their own. bounds: of each row's window,
    the parameters."""
    fast, slow = ("m", "n") if raster == "m" else ("n", "m")
    return Scheduler(
        name=RUNS
        if grouping.again and alignment % rows
        else together.scheduler or (WINDOWS[grouping.scheduler] if bounds else grouping.scheduler),
        fast=fast,  # type: ignore[arg-type]
        slow=slow,  # type: ignore[arg-type]
        panel=panel,
        params=(*(p.name for p in grouping.walked), *together.walked, *bounds),
        alignment=alignment * grouping.aligned,
        order=order,
        summed=grouping.summed,
    )


def order(
    s: Scheduler,
    block: Block,
    cluster: Cluster,
    shape: tuple[int, int, int],
    ctas: int,
    cta: int,
    layout: Layout = ALONE,
    seat: Seat = SOLE,
    chunk_rows: int = 1,
) -> Iterator[Tile]:
    """The tiles CTA `cta` of `ctas` computes for shape (M, N, K), in its order. seat: whose of several GPUs' launches it is;
    M is then the rows of D, or of each rank's A. chunk_rows: in what these are sent."""
    shape = (*shape[:2], summed_k(s.summed, shape[2], layout.groups, block.k))
    if s.name == RANKS:
        phases = Layout(groups=seat.ranks)
        walk = _tiles(s, block, cluster, shape, ctas, cta, phases)
        index, rank = divmod(cta, cluster.size)
        every = count(index, ctas // cluster.size)
        yield from _ranked(zip(every, walk, strict=False), block, cluster, rank, shape, seat)
        return
    if s.name == GATHERED:
        phases = Layout(groups=seat.ranks)
        walk = _tiles(s, block, cluster, shape, ctas, cta, phases)
        yield from _gathered(walk, block, shape[0], seat, chunk_rows)
        return
    if s.name == ALIKE:
        walk = _tiles(s, block, cluster, shape, ctas, cta, ALONE)
        yield from (
            _numbered(replace(t, d_end=0, owner=seat.rank, place=-1), block, cluster, shape)
            for t in walk
        )
        return
    if s.streams:
        tiles = list(_tiles(s, block, cluster, shape, 1, 0, layout))
        yield from _streamed(tiles, block.k, shape[2], ctas, cta)
        return
    walk = _tiles(s, block, cluster, shape, ctas, cta, layout)
    if s.windowed:
        walk = _windowed(walk, s, block, cluster, shape, layout)
    yield from _deepened(walk, block.k, shape[2], cta, layout) if s.name == "depths" else walk


def _tiles(
    s: Scheduler,
    block: Block,
    cluster: Cluster,
    shape: tuple[int, int, int],
    ctas: int,
    cta: int,
    layout: Layout,
) -> Iterator[Tile]:
    """With all of K."""
    m, n, k = shape
    rank, index, stride = cta % cluster.size, cta // cluster.size, ctas // cluster.size

    def sides(part: Segment) -> dict[str, int]:
        rows = part.end - part.first
        return {"m": _ceil(rows, block.m * cluster.m), "n": _ceil(n, block.n * cluster.n)}

    def tile(part: Segment, at: dict[str, int]) -> Tile:
        first_row = part.first + at["m"] * cluster.m * block.m
        row = first_row + rank % cluster.m * block.m
        col = (at["n"] * cluster.n + rank % cluster.n) * block.n
        end = 0 if TILES.get(s.name) == "tile" else part.end
        # A cluster's first row says which group all of it is in.
        group = max(layout.table[first_row], 0) if s.name == "rows" else part.group
        d_row, d_col = row // block.fold_rows, col // block.fold
        return Tile(row, col, d_row, d_col, _ceil(k, block.k), group, end)

    found = list(GRIDS[s.name](m, layout, s.alignment))
    if s.windowed and found:  # of all groups in turn
        across = sides(found[0])
        run = s.run(len(found) * prod(across.values()), stride)
        runs = across | {"n": _ceil(across["n"], run)}
        for i in range(index, len(found) * prod(runs.values()), stride):
            at = place(s, runs, i // len(found))
            for n in range(at["n"] * run, min((at["n"] + 1) * run, across["n"])):
                yield tile(found[i % len(found)], at | {"n": n})
        return
    first = 0  # the index of the part's first tile
    for part in found:
        end = first + prod(sides(part).values())
        while index < end:
            yield tile(part, place(s, sides(part), index - first))
            index += stride
        first = end


def _ranked(
    walk: Iterable[tuple[int, Tile]],
    block: Block,
    cluster: Cluster,
    rank: int,
    shape: tuple[int, int, int],
    seat: Seat,
) -> Iterator[Tile]:
    """A grid for each rank's rows, of which a group is a phase. Its tiles have slots in the order in which they come."""
    tiles = _ceil(shape[0], block.m * cluster.m) * _ceil(shape[1], block.n * cluster.n)
    for index, t in walk:
        owner = seat.owner(t.group)
        yield replace(
            t,
            a_row=owner * shape[0] + t.d_row,
            group=0,
            d_end=0,
            owner=owner,
            place=seat.ranks - 2 - t.group,
            slot=index % tiles * cluster.size + rank,
            slots=tiles * cluster.size,
        )


def _numbered(t: Tile, block: Block, cluster: Cluster, shape: tuple[int, int, int]) -> Tile:
    """Among those of the rank that stores it: by where it lies, not by who computes it."""
    m, n, _ = shape
    across = _ceil(n, block.n * cluster.n) * cluster.n
    return replace(
        t,
        slot=t.d_row // block.m * across + t.b_row // block.n,
        slots=_ceil(m, block.m * cluster.m) * cluster.m * across,
    )


def _gathered(
    walk: Iterator[Tile], block: Block, rows: int, seat: Seat, chunk_rows: int
) -> Iterator[Tile]:
    """A grid for each rank's rows, of which a group is a phase."""
    for t in walk:
        chunk = (min(t.a_row + block.m, rows) - 1) // chunk_rows
        flag = (t.group - 1) * MOST_CHUNKS + chunk
        yield replace(t, group=seat.source(t.group), d_end=0, flag=flag)


def _streamed(tiles: Sequence[Tile], block_k: int, k: int, ctas: int, cta: int) -> Iterator[Tile]:
    """A stretch of the K blocks of all tiles, in the order in which one CTA would walk them."""
    slot = of_cta(cta, ctas, len(tiles))
    for part in parts(slot, ctas, len(tiles), _ceil(k, block_k)):
        yield replace(
            tiles[part.tile],
            k_blocks=part.end - part.first,
            k_first=part.first * block_k,
            slot=slot,
            others=part.others,
        )


def _deepened(
    walk: Iterator[Tile], block_k: int, k: int, cta: int, layout: Layout
) -> Iterator[Tile]:
    """With the K of each tile's group."""
    of_group, last = in_turn(k, layout), -1
    for t in walk:
        d = of_group[t.group]
        yield replace(
            t,
            k_blocks=_ceil(d.end - d.first, block_k),
            d_end=0,
            k_first=d.first,
            k_end=d.end,
            slot=cta * layout.groups + t.group,
            opens_group=t.group != last and d.first < d.end,
        )
        last = t.group


def _windowed(
    walk: Iterator[Tile],
    s: Scheduler,
    block: Block,
    cluster: Cluster,
    shape: tuple[int, int, int],
    layout: Layout,
) -> Iterator[Tile]:
    """Without K blocks where no window of its cluster's rows reaches a column of the cluster's. layout.table: of all groups' rows where each
    window begins, if not at 0, then where each ends."""
    if not layout.table:  # every row's window has all columns
        yield from walk
        return
    rows, ends = shape[0] // block.fold_rows, layout.table[-len(layout.table) // len(s.bounds) :]
    firsts = layout.table[: len(ends)] if len(s.bounds) > 1 else (0,) * len(ends)
    for t in walk:
        high, wide = block.d_m * cluster.m, block.d_n * cluster.n
        row, col = t.d_row // high * high, t.d_col // wide * wide
        of_rows = range(t.group * rows + row, t.group * rows + min(row + high, rows))
        first = min(firsts[i] for i in of_rows)
        end = max(ends[i] for i in of_rows)
        reached = first < col + wide and end > col
        yield t if reached else replace(t, k_blocks=0)


def runs(rows: int, layout: Layout, alignment: int) -> Iterator[Segment]:
    """Rows of one group, or of none, which then are multiplied as group 0's, from one aligned row to another."""
    first = 0
    for row in chain(range(alignment, rows, alignment), (rows,)):
        if row == rows or layout.table[row] != layout.table[first]:
            yield Segment(group=max(layout.table[first], 0), first=first, end=row)
            first = row


# By scheduler: the parts of D that are walked one after the other.
GRIDS = {g.scheduler: SEGMENTS[name] for name, g in GROUPINGS.items()}
GRIDS |= {
    **dict.fromkeys(("rows", WINDOWS["panels"], ALIKE), SEGMENTS["summed"]),  # all rows together
    WINDOWS["batched"]: SEGMENTS["batched"],
    RUNS: runs,
    **dict.fromkeys((RANKS, GATHERED), SEGMENTS["batched"]),
}


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
