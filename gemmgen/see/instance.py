"""Which loops the first cluster of a launch runs: tiles, and the K blocks of each."""

from __future__ import annotations

from functools import partial
from itertools import islice

from ..check.ops import Instance
from ..errors import ArgumentError
from ..ir.groupings import ALONE, Layout, depths, segments
from ..ir.nodes import Kernel
from ..problem import Problem, Shape
from ..schedulers import order

MOST = 1 << 14  # K blocks of a CTA: more take minutes and show nothing new


def instance(kernel: Kernel, shape: Shape, ctas: int, layout: Layout = ALONE) -> Instance:
    """Of CTA 0 in a launch of `ctas` on (M, N, K); the rest of its cluster does alike, but for
    the rows that D has.

    Raises ArgumentError if it has no tile, or more than MOST K blocks."""
    b = kernel.block
    walk = partial(order, kernel.scheduler, b, kernel.cluster, shape, ctas, layout=layout)
    tiles = list(islice(walk(0), MOST + 1))  # a launch may have more than memory holds
    counts = tuple(t.k_blocks for t in tiles)
    if not counts:
        raise ArgumentError("shape", shape, "must give the first cluster a tile")
    if max(sum(counts), len(counts)) > MOST:
        allowed = f"must give each of {ctas} CTAs, one per SM, at most {MOST} tiles and K blocks"
        raise ArgumentError("shape", shape, allowed)
    ranks = range(kernel.cluster.size if kernel.groups.ragged else 0)
    return Instance(
        k_blocks=max(counts),
        tiles=len(counts),
        depths=counts if kernel.groups.depths else (),
        rows=tuple(
            tuple(t.d_end - t.d_row for t in islice(walk(rank), len(tiles))) for rank in ranks
        ),
    )


def mean_size(p: Problem, shape: Shape, layout: Layout) -> Shape:
    """What one of the groups has on average: (M, N, K). All have the same where they are summed."""
    m, n, k = shape
    rows = [s.end - s.first for s in segments(p.grouping, m, layout, p.alignment)]
    deep = [d.end - d.first for d in depths(p.grouping, k, layout)]
    groups = len(deep)
    return round(sum(rows) / groups), n, round(sum(deep) / groups)


def mean_shape(p: Problem, shape: Shape, layout: Layout) -> Shape:
    """`mean_size` as the cost model prices it, each 1 at least."""
    m, n, k = mean_size(p, shape, layout)
    return max(1, m), n, max(1, k)
