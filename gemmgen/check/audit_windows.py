"""The schedulers of windows, replayed: a tile that some row's window reaches has all its K blocks, any other all or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..ir.argument_names import parameter
from ..ir.groupings import Layout
from ..ir.nodes import Kernel, StoreValues
from ..ir.rewrite import statements
from ..ir.row_sums import windows
from ..ir.tiles import Block, Cluster
from ..ir.walks import COUNT, Scheduler
from ..schedulers import Tile

Shape = tuple[int, int, int]
Sample = tuple[Shape, int, Layout]


def windowed(
    walks: Sequence[Sequence[Tile]], block: Block, shape: Shape, layout: Layout
) -> Iterator[str]:
    """layout.table: of all groups' rows where each window begins, if they do not all at 0, then where each ends."""
    rows, all_of_k = shape[0] // block.fold_rows, -(-shape[2] // block.k)
    every = rows * layout.groups
    ends = layout.table[-every:]
    firsts = layout.table[:-every] or (0,) * every
    for t in (t for walk in walks for t in walk):
        columns = range(t.d_col, min(t.d_col + block.d_n, shape[1]))
        of_group = range(t.group * rows, (t.group + 1) * rows)
        mine = of_group[t.d_row : t.d_row + block.d_m]
        reached = any(
            range(max(firsts[i], columns.start), min(ends[i], columns.stop)) for i in mine
        )
        if t.k_blocks not in (0, all_of_k) or (reached and not t.k_blocks):
            yield f"the tile at {(t.d_row, t.d_col)} of group {t.group} has {t.k_blocks} K blocks, and a window {'reaches' * reached or 'misses'} it"


def bounds(kernel: Kernel) -> Iterator[str]:
    """The scheduler reads those that elements are compared with, and where rows begin with their windows D's own place says so."""
    found = [s for s in statements(kernel) if isinstance(s, StoreValues)]
    staged = (s.value for s in found if s.of in ("sums", "window"))
    asked = {tuple(parameter(x.name) for x in windows(value)) for value in staged}
    if asked - {kernel.scheduler.bounds}:
        yield f"the scheduler reads windows from {kernel.scheduler.bounds}, elements from {sorted(asked)}"


def full(walks: Sequence[Sequence[Tile]], k_blocks: int) -> list[list[Tile]]:
    """The same tiles as if every window reached them."""
    return [[replace(t, k_blocks=k_blocks) for t in walk] for walk in walks]


def samples(block: Block, cluster: Cluster, scheduler: Scheduler) -> Iterator[Sample]:
    """Windows of so many groups as the scheduler walks, and with the bounds that it has."""
    grouped, bounds = COUNT in scheduler.params, len(scheduler.bounds)
    for shape, ctas, layout in _windows(block, cluster):
        half = len(layout.table) // 2
        firsts, ends = layout.table[:half], layout.table[half:]
        for groups in (1, 3) if grouped else (1,):
            # Groups differ: one after the other has the windows of the first in turn.
            moved = [at for g in range(groups) for at in (*range(g, half), *range(min(g, half)))]
            table = (*[firsts[i] for i in moved] * (bounds > 1), *[ends[i] for i in moved])
            yield shape, ctas, Layout(groups=groups, table=table)


def _windows(block: Block, cluster: Cluster) -> Iterator[Sample]:
    """Windows that are empty, of one column, of all columns, that begin and end at tiles' edges and beside them, that end before
    they begin, and one after the other."""
    size, fold = cluster.size, block.fold_rows
    yield (fold, 1, block.k), size, Layout(table=(0, 1))
    yield (fold, 1, 1), size, Layout(table=(0, 0))
    high, wide = block.d_m * cluster.m, block.n * cluster.n
    rows, n = 3 * high + 1, 3 * wide + 1
    edges = (0, 1, wide - 1, wide, wide + 1, 2 * wide, n - 1, n)
    pairs = [(a, b) for a in edges for b in edges]
    for a, b in pairs:
        yield (fold, n, block.k), 2 * size, Layout(table=(a, b))
    for start in range(0, len(pairs), rows):
        some = [pairs[(start + i) % len(pairs)] for i in range(rows)]
        table = (*(a for a, _ in some), *(b for _, b in some))
        yield (rows * fold, n, 2 * block.k), 2 * size, Layout(table=table)
    causal = (*(0 for _ in range(rows)), *(min(n, 1 + i * n // rows) for i in range(rows)))
    yield (rows * fold, n, block.k), 5 * size, Layout(table=causal)
