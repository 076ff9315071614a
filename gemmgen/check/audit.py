"""P13, by replaying the scheduler: each tile once, and cluster peers that go together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..ir.nodes import Block, Cluster, Kernel, Scheduler, TmaLoadMulticast
from ..ir.rewrite import statements
from ..schedulers import Tile, order
from .finding import Finding
from .properties import CLUSTER

Shape = tuple[int, int, int]


def audit(
    scheduler: Scheduler, block: Block, cluster: Cluster, shape: Shape, ctas: int
) -> Iterator[Finding]:
    """Walk all of `ctas` CTAs over D of shape (M, N, K)."""
    walks = [list(order(scheduler, block, cluster, shape, ctas, cta)) for cta in range(ctas)]
    where = f"{scheduler.name}, M, N, K = {shape}, {ctas} CTAs"
    for text in examine(walks, block, cluster, shape):
        yield Finding(property=CLUSTER, message=f"{where}: {text}")


def examine(walks: list[list[Tile]], block: Block, cluster: Cluster, shape: Shape) -> Iterator[str]:
    """What is wrong with the tiles that each CTA walks over, whoever ordered them."""
    yield from _coverage(walks, block, cluster, shape)
    yield from _agreement(walks, cluster)


def _coverage(
    walks: list[list[Tile]], block: Block, cluster: Cluster, shape: Shape
) -> Iterator[str]:
    m, n, k = shape
    seen = Counter((t.d_row, t.d_col) for walk in walks for t in walk)
    wanted = {(row, col) for row in range(0, m, block.m) for col in range(0, n, block.n)}
    if missed := sorted(wanted - set(seen)):
        yield f"the tile at {missed[0]} is never computed"
    if twice := sorted(at for at, times in seen.items() if times > 1):
        yield f"the tile at {twice[0]} is computed {seen[twice[0]]} times"
    spans = block.m * cluster.m, block.n * cluster.n
    for row, col in sorted(set(seen) - wanted):
        if row // spans[0] * spans[0] >= m or col // spans[1] * spans[1] >= n:
            yield f"the tile at {(row, col)} lies wholly outside D, and so does its cluster"
            break
    blocks = {t.k_blocks for walk in walks for t in walk}
    if blocks - {-(-k // block.k)}:
        yield f"tiles have {sorted(blocks)} K blocks"


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
    if cluster.shared and len(rows[cluster.shared]) > 1:
        yield f"{who} share {cluster.shared}, but at rows {sorted(rows[cluster.shared])}"
    if len({(t.d_row, t.d_col) for t in tiles}) < len(tiles):
        yield f"{who} compute the same tile"


def sample(kernel: Kernel) -> Iterator[tuple[Shape, int]]:
    """Shapes and grids on which a scheduler shows what it does at tails and panel edges."""
    b, size = kernel.block, kernel.cluster.size
    panel = kernel.scheduler.panel
    yield (1, 1, 1), size
    yield (b.m * 3 + 1, b.n * 3 + 1, 2 * b.k), 2 * size
    yield (b.m * (panel + 1), b.n * 5, b.k), 3 * size
    yield (b.m * 4 - 1, b.n * (panel + 2), 3 * b.k), 5 * size


def sharing(kernel: Kernel) -> Iterator[Finding]:
    """What is multicast is what the scheduler makes the cluster share, in slices that cover it."""
    shared = f"tile.{kernel.cluster.shared}_row"
    for s in statements(kernel):
        if isinstance(s, TmaLoadMulticast):
            moving = [c for c in s.coords if c.base.startswith("tile.")]
            steps = sorted(c.rank_step for c in s.coords)
            if any(c.base != shared for c in moving) or not moving or steps != [0, s.slice]:
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
    for shape, ctas in sample(kernel):
        yield from audit(kernel.scheduler, kernel.block, kernel.cluster, shape, ctas)
