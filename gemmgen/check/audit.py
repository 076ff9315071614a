"""P13, by replaying the scheduler: each tile once, and cluster peers that go together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, product

from ..ir.collectives import MOST_CHUNKS, Seat
from ..ir.groupings import (
    ALONE,
    GROUPINGS,
    OF_SIZES,
    Depth,
    Layout,
    Segment,
    depths,
    segments,
    summed_k,
)
from ..ir.nodes import Block, Cluster, Kernel, Scheduler
from ..ir.rewrite import statements
from ..ir.stmts import multicasts
from ..ir.walks import WINDOWS
from ..schedulers import ALIKE, GATHERED, RANKS, RUNS, Tile, order
from .audit_ranks import audit_alike, audit_gathered, audit_ranks, own
from .audit_streams import stretches, whole
from .audit_windows import bounds, full, samples, windowed
from .finding import Finding
from .properties import CLUSTER

Shape = tuple[int, int, int]


def audit(
    scheduler: Scheduler,
    block: Block,
    cluster: Cluster,
    shape: Shape,
    ctas: int,
    layout: Layout = ALONE,
) -> Iterator[Finding]:
    """Walk all of `ctas` CTAs over D of shape (M, N, K)."""
    if scheduler.name in (RANKS, ALIKE):
        yield from _ranked(scheduler, block, cluster, shape, ctas)
        return
    if scheduler.name == GATHERED:
        yield from _gathered(scheduler, block, cluster, shape, ctas)
        return
    walks = [
        list(order(scheduler, block, cluster, shape, ctas, cta, layout)) for cta in range(ctas)
    ]
    where = f"{scheduler.name}, M, N, K = {shape}, {ctas} CTAs"
    where += f", {layout.groups} groups, {list(layout.table)}" * (layout != ALONE)
    span = block.m * cluster.m
    parts = PARTS.get(scheduler.name, _groups)(scheduler, span, shape[0], layout)
    shape = (*shape[:2], summed_k(scheduler.summed, shape[2], layout.groups, block.k))
    summed = depths(_grouping(scheduler), shape[2], layout)
    if scheduler.streams:
        k_blocks = -(-shape[2] // block.k)
        for text in stretches(walks, block.k, k_blocks):
            yield Finding(property=CLUSTER, message=f"{where}: {text}")
        walks = whole(walks, k_blocks)
    if scheduler.windowed:
        texts = [*windowed(walks, block, shape, layout), *_agreement(walks, cluster)]
        yield from (Finding(property=CLUSTER, message=f"{where}: {text}") for text in texts)
        walks = full(walks, -(-shape[2] // block.k))
    for text in examine(walks, block, cluster, shape, parts, summed):
        yield Finding(property=CLUSTER, message=f"{where}: {text}")


def _ranked(
    s: Scheduler, block: Block, cluster: Cluster, shape: Shape, ctas: int
) -> Iterator[Finding]:
    """Each rank's launch, of some numbers of them."""

    def walks(seat: Seat) -> list[list[Tile]]:
        each = (order(s, block, cluster, shape, ctas, cta, seat=seat) for cta in range(ctas))
        return list(map(list, each))

    of_all = audit_ranks if s.name == RANKS else audit_alike
    for ranks in RANKED:
        texts = list(of_all(walks, block, shape, ranks))
        for rank in range(ranks):
            mine = own(walks(Seat(rank=rank, ranks=ranks)))
            texts += examine(mine, block, cluster, shape)
        for text in texts:
            where = f"{s.name}, M, N, K = {shape}, {ctas} CTAs"
            yield Finding(property=CLUSTER, message=f"{where}: {text}")


def _gathered(
    s: Scheduler, block: Block, cluster: Cluster, shape: Shape, ctas: int
) -> Iterator[Finding]:
    """The same, of chunks that divide no tile, several tiles, and as few rows as there may be."""
    least = -(-shape[0] // MOST_CHUNKS)
    for ranks in RANKED:
        parts = [Segment(group=g, first=0, end=shape[0]) for g in range(ranks)]
        chunks = dict.fromkeys((least, max(least, block.m), max(least, 2 * block.m + 1)))
        for rank, chunk_rows in product(range(ranks), chunks):
            seat = Seat(rank=rank, ranks=ranks)
            walks = [
                list(order(s, block, cluster, shape, ctas, cta, seat=seat, chunk_rows=chunk_rows))
                for cta in range(ctas)
            ]
            texts = list(audit_gathered(walks, block, shape[0], seat, chunk_rows))
            texts += examine(walks, block, cluster, shape, parts)
            where = f"{s.name}, M, N, K = {shape}, {ctas} CTAs, rank {rank} of {ranks}"
            for text in texts:
                yield Finding(property=CLUSTER, message=f"{where}: {text}")


def _groups(s: Scheduler, span: int, rows: int, layout: Layout) -> list[Segment]:
    return list(segments(_grouping(s), rows, layout, s.alignment))


def _runs(s: Scheduler, span: int, rows: int, layout: Layout) -> list[Segment]:
    """All rows, those of none with group 0's B: as many together as aligned ones say the same of."""
    found, first = [], 0
    for group, same in groupby(layout.table[:: s.alignment]):
        end = min(first + s.alignment * len([*same]), rows)
        found.append(Segment(group=max(group, 0), first=first, end=end))
        first = end
    return found


def _by_tile(s: Scheduler, span: int, rows: int, layout: Layout) -> list[Segment]:
    """Every `span` of rows is computed, in the group of its first row, or of group 0 if that has none."""
    return [
        Segment(group=max(layout.table[row], 0), first=row, end=min(row + span, rows))
        for row in range(0, rows, span)
    ]


RANKED = (1, 2, 3, 8)  # numbers of ranks
PARTS = {"rows": _by_tile, RUNS: _runs}


def _grouping(s: Scheduler) -> str:
    name = {
        RUNS: "rows",
        **dict.fromkeys((RANKS, GATHERED, ALIKE), GROUPINGS["none"].scheduler),
        **{of: plain for plain, of in WINDOWS.items()},
    }.get(s.name, s.name)
    same = (x for x, g in GROUPINGS.items() if (g.scheduler, g.summed) == (name, s.summed))
    return next(same)


def examine(
    walks: list[list[Tile]],
    block: Block,
    cluster: Cluster,
    shape: Shape,
    parts: Sequence[Segment] = (),
    summed: Sequence[Depth] = (),
) -> Iterator[str]:
    """What is wrong with the tiles that each CTA walks over, whoever ordered them. `parts`: the
    groups' rows, if D is not one part. `summed`: the K of each group, if not all of it."""
    yield from _coverage(walks, block, cluster, shape, parts)
    yield from _summed(walks, block, summed or [Depth(first=0, end=shape[2])])
    yield from _agreement(walks, cluster)


def _coverage(
    walks: list[list[Tile]],
    block: Block,
    cluster: Cluster,
    shape: Shape,
    parts: Sequence[Segment],
) -> Iterator[str]:
    m, n, _ = shape
    wanted = {
        (p.group, row // block.fold_rows, col // block.fold)
        for p in parts or [Segment(group=0, first=0, end=m)]
        for row in range(p.first, p.end, block.m)
        for col in range(0, n, block.n)
    }
    # A tile after its group's last row, which completes a cluster, stores nothing.
    stored = (t for walk in walks[:: cluster.k] for t in walk if not 0 < t.d_end <= t.d_row)
    seen = Counter(map(_at, stored))
    if missed := sorted(wanted - set(seen)):
        yield f"the tile at {_name(missed[0])} is never computed"
    if twice := sorted(at for at, times in seen.items() if times > 1):
        yield f"the tile at {_name(twice[0])} is computed {seen[twice[0]]} times"
    for first in range(0, len(walks), cluster.size):
        for tiles in zip(*walks[first : first + cluster.size], strict=False):
            if not wanted & set(map(_at, tiles)):
                at = _name(_at(tiles[0]))
                yield f"the tile at {at} lies wholly outside D, and so does its cluster"
                break


def _summed(walks: list[list[Tile]], block: Block, summed: Sequence[Depth]) -> Iterator[str]:
    """Each tile sums its group's K blocks, and a group's first tile in a CTA says that it is."""
    blocks = {(t.group if len(summed) > 1 else 0, t.k_blocks) for walk in walks for t in walk}
    wanted = {(g, -(-(d.end - d.first) // block.k)) for g, d in enumerate(summed)}
    if blocks - wanted:
        yield f"tiles have {sorted({count for _, count in blocks})} K blocks"
    for walk in walks:
        for t in (t for t in walk if t.k_end):
            d = summed[t.group]
            if (t.k_first, t.k_end) != (d.first, d.end):
                yield f"group {t.group} sums K {t.k_first} to {t.k_end - 1}"
        slots = [t.slot for t in walk if t.opens_group]
        if len({*slots}) < len(slots):
            yield "tensor maps of a group are derived twice by one CTA"
        if {t.slot for t in walk if t.k_end and t.k_blocks} - {*slots}:
            yield "a tile uses tensor maps that its CTA never derived"
    owners = Counter(slot for walk in walks for slot in {t.slot for t in walk if t.opens_group})
    if max(owners.values(), default=1) > 1:
        yield "two CTAs derive tensor maps in the same place"


def _at(t: Tile) -> tuple[int, int, int]:
    return t.group, t.d_row, t.d_col


def _name(at: tuple[int, int, int]) -> str:
    return f"{at[1:]}" + f" of group {at[0]}" * bool(at[0])


def _agreement(walks: list[list[Tile]], cluster: Cluster) -> Iterator[str]:
    """Peers wait for each other: same number of tiles, same K blocks, same shared operand."""
    for first in range(0, len(walks), cluster.size):
        peers = walks[first : first + cluster.size]
        if len({len(walk) for walk in peers}) > 1:
            yield f"the CTAs of cluster {first // cluster.size} have different numbers of tiles"
            return
        for tiles in zip(*peers, strict=True):
            yield from _together(tiles, cluster, first)


def _together(tiles: tuple[Tile, ...], cluster: Cluster, first: int) -> Iterator[str]:
    who = f"the CTAs of cluster {first // cluster.size}"
    if len({t.k_blocks for t in tiles}) > 1:
        yield f"{who} have different numbers of K blocks"
    rows = {"a": {t.a_row for t in tiles}, "b": {t.b_row for t in tiles}}
    if len({t.group for t in tiles}) > 1:
        yield f"{who} are in different groups"
    if cluster.shared and len(rows[cluster.shared]) > 1:
        yield f"{who} share {cluster.shared}, but at rows {sorted(rows[cluster.shared])}"
    if len({(t.d_row, t.d_col) for t in tiles}) < len(tiles) // cluster.k:
        yield f"{who} compute the same tile"
    if cluster.k > 1 and len(set(tiles)) > 1:
        yield f"{who} divide the K of different tiles"


def sample(kernel: Kernel) -> Iterator[tuple[Shape, int, Layout]]:
    """Shapes, grids and groups on which a scheduler shows what it does at tails and panel edges, and where CTAs take stretches
    of K blocks, where those begin and end."""
    b, size, s = kernel.block, kernel.cluster.size, kernel.scheduler
    if s.windowed:
        yield from samples(b, kernel.cluster, s)
        return
    if s.streams:
        for k in (1, 2, 5, 9):
            for ctas in (2, 3, 5, 7):
                shape = (b.m + 1, 5 * b.n, k * b.k)
                yield shape, ctas, _layout(s, b.m + 1, (0, 0))
        yield (1, 1, 8 * b.k - 1), 8, _layout(s, 1, (1,))
    yield (1, 1, 1), size, _layout(s, 1, (1,))
    yield (b.m * 3 + 1, b.n * 3 + 1, 2 * b.k), 2 * size, _layout(s, b.m * 3 + 1, (0, b.m + 1, 2, 0))
    rows = b.m * (s.panel + 1)
    yield (rows, b.n * 5, b.k), 3 * size, _layout(s, rows, (rows,))
    rows = b.m * 4 - 1
    yield (rows, b.n * (s.panel + 2), 3 * b.k), 5 * size, _layout(s, rows, (3, 0, rows - b.m))


def _layout(s: Scheduler, rows: int, sizes: tuple[int, ...]) -> Layout:
    """Groups of about `sizes` rows; of A's, if they share them."""
    return OF_SIZES[_grouping(s)](rows, sizes, s.alignment)


def sharing(kernel: Kernel) -> Iterator[Finding]:
    """What is multicast is what the scheduler makes the cluster share, in slices that cover it."""
    shared = f"tile.{kernel.cluster.shared}_row"
    for s in statements(kernel):
        if multicasts(s):
            moving = [c for c in s.coords if c.base.endswith("_row")]
            steps = [c.rank_step for c in s.coords if c.rank_step]
            if any(c.base != shared for c in moving) or not moving or steps != [s.slice]:
                text = (
                    f"{s.tensor_map} is multicast in slices of {s.slice}, but placed by {s.coords}"
                )
                yield Finding(property=CLUSTER, message=text)
            if s.mask != (1 << kernel.cluster.size) - 1:
                text = f"{s.tensor_map} goes to the CTAs {s.mask:#b} of {kernel.cluster.size}"
                yield Finding(property=CLUSTER, message=text)


def agreement(kernel: Kernel) -> Iterator[Finding]:
    """The kernel's scheduler on a few shapes, and its multicasts."""
    yield from sharing(kernel)
    yield from (Finding(property=CLUSTER, message=text) for text in bounds(kernel))
    for shape, ctas, layout in sample(kernel):
        yield from audit(kernel.scheduler, kernel.block, kernel.cluster, shape, ctas, layout)
