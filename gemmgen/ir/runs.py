"""How K blocks are dealt out where each CTA takes an equal run of all tiles' (docs/adr/0044-streams.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Part(NamedTuple):
    """The K blocks first..end-1 of a tile that one CTA has. others: the CTAs that have the rest, behind `end`: those of
    the runs that follow."""

    tile: int
    first: int
    end: int
    others: int


def run(index: int, runs: int, blocks: int) -> range:
    """Of `blocks`, those of one of so many runs: equally many in each, the first ones one more."""
    share, longer = divmod(blocks, runs)
    first = index * share + min(index, longer)
    return range(first, first + share + (index < longer))


def run_of(block: int, runs: int, blocks: int) -> int:
    """The run that a block is in."""
    share, longer = divmod(blocks, runs)
    more = longer * (share + 1)
    return block // (share + 1) if block < more else longer + (block - more) // share


def of_cta(cta: int, ctas: int) -> int:
    """Its run. A CTA waits for runs behind its own: those belong to CTAs of lower index, which begin no later."""
    return ctas - 1 - cta


def parts(index: int, runs: int, tiles: int, k_blocks: int) -> Iterator[Part]:
    """A run's, of so many tiles of `k_blocks` each."""
    blocks = tiles * k_blocks
    mine = run(index, runs, blocks)
    at = mine.start
    while at < mine.stop:
        tile, first = divmod(at, k_blocks)
        end = min(k_blocks, first + mine.stop - at)
        last = run_of(tile * k_blocks + k_blocks - 1, runs, blocks)
        yield Part(tile, first, end, last - index)
        at += end - first
