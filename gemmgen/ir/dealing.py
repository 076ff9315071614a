"""How K blocks are dealt out to CTAs: where those of a cluster divide a tile's, a share to each; where each takes an equal
stretch of all tiles' (docs/adr/0044-streams.md), that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


def share(blocks: int, rank: int, ranks: int) -> range:
    """ceil(blocks / ranks) from rank times as many on, or what is left."""
    each = -(-blocks // ranks)
    return range(min(rank * each, blocks), min(rank * each + each, blocks))


class Part(NamedTuple):
    """The K blocks first..end-1 of a tile that one CTA has. others: the CTAs that have the rest, behind `end`: those of
    the stretches that follow."""

    tile: int
    first: int
    end: int
    others: int


def stretch(index: int, stretches: int, blocks: int) -> range:
    """Of `blocks`, those of one of so many stretches: equally many in each, the first ones one more."""
    each, longer = divmod(blocks, stretches)
    first = index * each + min(index, longer)
    return range(first, first + each + (index < longer))


def stretch_of(block: int, stretches: int, blocks: int) -> int:
    """The stretch that a block is in."""
    each, longer = divmod(blocks, stretches)
    more = longer * (each + 1)
    return block // (each + 1) if block < more else longer + (block - more) // each


def of_cta(cta: int, ctas: int) -> int:
    """Its stretch. A CTA waits for stretches behind its own: those belong to CTAs of lower index, which begin no later."""
    return ctas - 1 - cta


def parts(index: int, stretches: int, tiles: int, k_blocks: int) -> Iterator[Part]:
    """A stretch's, of so many tiles of `k_blocks` each."""
    blocks = tiles * k_blocks
    mine = stretch(index, stretches, blocks)
    at = mine.start
    while at < mine.stop:
        tile, first = divmod(at, k_blocks)
        end = min(k_blocks, first + mine.stop - at)
        last = stretch_of(tile * k_blocks + k_blocks - 1, stretches, blocks)
        yield Part(tile, first, end, last - index)
        at += end - first
