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


IDLE = 16  # CTAs of which one may be left out, where each of the others then has K blocks of one tile only


def ctas(tiles: int, k_blocks: int, most: int) -> int:
    """How many stretches the K blocks of so many tiles are dealt out in, one of a CTA: at most `most`, each of one block at least, and a multiple
    of `tiles` where that leaves few CTAs out."""
    count = min(tiles * k_blocks, most)
    left = count % tiles if tiles <= count else 0
    return count - left if left * IDLE <= most else count


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


def spans(tiles: int, stretches: int) -> int:
    """What is dealt out in equal stretches: each tile's K blocks, where as many stretches fall to each, else those of all tiles as one."""
    return 1 if stretches % tiles else tiles


def of_cta(cta: int, stretches: int, tiles: int) -> int:
    """Its stretch. Neighbours have the same K blocks of different tiles, of which both load some. A CTA waits for stretches behind its own: those
    belong to CTAs of lower index, which begin no later."""
    count = spans(tiles, stretches)
    turn, span = divmod(stretches - 1 - cta, count)
    return span * (stretches // count) + turn


def parts(index: int, stretches: int, tiles: int, k_blocks: int) -> Iterator[Part]:
    """A stretch's, of so many tiles of `k_blocks` each."""
    count = spans(tiles, stretches)
    blocks, each = tiles * k_blocks // count, stretches // count
    span, place = divmod(index, each)
    mine, before = stretch(place, each, blocks), span * blocks
    at = mine.start
    while at < mine.stop:
        tile, first = divmod(before + at, k_blocks)
        end = min(k_blocks, first + mine.stop - at)
        last = span * each + stretch_of(tile * k_blocks + k_blocks - 1 - before, each, blocks)
        yield Part(tile, first, end, last - index)
        at += end - first
