"""What kernels count in 32 bits, and how far. The host refuses what would not fit, by name: on the device no sum or
product of int overflows, and none is checked there."""

from __future__ import annotations

from ..errors import ArgumentError
from .groupings import summed_k
from .launchable import Launchable

INT_LIMIT = 1 << 31
# Elements past a side that a kernel still counts: the rest of a cluster's tiles, of a K block, or of the rows up to
# where the next group may begin, or of the K blocks that registers hold, 1125 bytes of them at most beside 44 other registers.
REACH = 2048
MOST_SIDE = INT_LIMIT - REACH
# Past the last tile a walk counts once more, by as many as there are clusters: far fewer than this.
MOST_TILES = INT_LIMIT - (1 << 16)

Shape = tuple[int, int, int]  # M, N, K


def check_side(name: str, side: int) -> None:
    """Raise ArgumentError for a side that is too long, or none."""
    if not 1 <= side <= MOST_SIDE:
        raise ArgumentError(name, side, f"must be at least 1 and at most {MOST_SIDE}")


def check_tiles(kernel: Launchable, shape: Shape, groups: int = 1) -> None:
    """Raise ArgumentError unless `kernel` can count the tiles of `groups` groups of `shape`, and their K blocks where CTAs
    take stretches of those."""
    k = summed_k(kernel.groups.summed, shape[2], groups, kernel.block.k)
    if k > MOST_SIDE:
        allowed = f"must have at most {MOST_SIDE} of K in all groups, each in whole K blocks"
        raise ArgumentError("groups, k", (groups, shape[2]), allowed)
    k_blocks = -(-k // kernel.block.k)
    if kernel.workspace.words and most_tiles(kernel, shape, groups) * k_blocks > MOST_TILES:
        allowed = f"must make at most {MOST_TILES} K blocks in all tiles where stream is asked for"
        raise ArgumentError("groups, m, n, k", (groups, *shape), allowed)
    if most_tiles(kernel, shape, groups) <= MOST_TILES:
        return
    b, c = kernel.block, kernel.cluster
    name, value = ("groups, m, n", (groups, *shape[:2])) if groups > 1 else ("m, n", shape[:2])
    allowed = f"must make at most {MOST_TILES} tiles of {b.m * c.m} x {b.n * c.n}"
    raise ArgumentError(name, value, allowed)


def most_tiles(kernel: Launchable, shape: Shape, groups: int) -> int:
    """As many as a walk may count, a cluster's as one: where groups share A's rows each of their places may end inside
    one."""
    b, c, g = kernel.block, kernel.cluster, kernel.groups
    tiles_m, tiles_n = -(-shape[0] // (b.m * c.m)), -(-shape[1] // (b.n * c.n))
    if g.step:
        return (tiles_m + -(-shape[0] // g.step)) * tiles_n
    if g.rows or g.depths or (kernel.peers.slot and not kernel.peers.every):
        return groups * tiles_m * tiles_n
    return (tiles_m + groups * g.ragged) * tiles_n


def check_maps(kernel: Launchable, ctas: int, groups: int) -> None:
    """Raise ArgumentError unless `ctas` CTAs can count the tensor maps that they derive for `groups` groups."""
    each = ctas * sum(m.derived for m in kernel.maps)
    if each * groups >= INT_LIMIT:
        allowed = f"must be at most {(INT_LIMIT - 1) // each}: {ctas} CTAs have maps of their own"
        raise ArgumentError("groups", groups, allowed)
