"""How K blocks are dealt out to CTAs: where those of a cluster divide a tile's, a share to each."""

from __future__ import annotations


def share(blocks: int, rank: int, ranks: int) -> range:
    """ceil(blocks / ranks) from rank times as many on, or what is left."""
    each = -(-blocks // ranks)
    return range(min(rank * each, blocks), min(rank * each + each, blocks))
