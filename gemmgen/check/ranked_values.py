"""P10 in registers where ranks add their sums up: see values.py.

Each rank sums K of its own. Here K blocks are numbered through, those of a tile's owner first, then of the ranks behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..ir.collectives import Seat
from .finding import Finding
from .instance import Instance, Post
from .reader import Reader, Sent

CASES = ((1, 2, 3), (2, 2, 1), (2, 3, 3))  # tiles in the rows of each rank, ranks, K blocks of each
Execute = Callable[[Reader], None]


def ranked(
    blank: Reader, execute: Execute, more: tuple[tuple[int, int, int], ...], every: bool
) -> Iterator[Finding]:
    """Every rank's tiles of one launch: once to send, and once more to add what others have sent. every: each rank's are all, which are then rank 0's."""
    for tiles, ranks, blocks in (*CASES, *more):
        sent: Sent = {}
        for again in (False, True):
            for rank in range(ranks):
                posts = Instance(k_blocks=blocks, tiles=tiles, ranks=ranks, every=every).posts(
                    rank, 0, 0
                )
                if every:
                    posts = tuple(replace(x, owner=0) for x in posts)
                reader = replace(
                    blank,
                    counts=(ranks * blocks,) * (ranks * tiles),
                    rank=rank,
                    ranks=ranks,
                    posts=posts,
                    sent=sent,
                    registers={},
                    found=[],
                )
                execute(reader)
                if again:
                    yield from reader.found


def mine(post: Post, rank: int, ranks: int, blocks: int) -> range:
    """The K blocks of a tile that a rank sums, of `blocks` in all."""
    each = blocks // ranks
    at = (rank - post.owner) % ranks
    return range(at * each, at * each + each)


def senders(post: Post, ranks: int) -> list[int]:
    """Who sends a tile to its owner, in order."""
    return [Seat(rank=post.owner, ranks=ranks).owner(place) for place in range(ranks - 1)]
