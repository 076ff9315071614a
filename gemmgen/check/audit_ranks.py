"""P13 of several ranks. Where they add their sums up: each computes every tile of every rank's rows once, the others' first, and all
find a tile in the same place. Where all store the sum, each computes every tile once, in an order in which none can wait for another that waits for it. Where they send each other their rows: each computes every tile of all of them, its own first, and waits
for the flag of its last row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import chain, pairwise

from ..ir.collectives import MOST_CHUNKS, Seat
from ..ir.nodes import Block
from ..schedulers import Tile

Shape = tuple[int, int, int]
Walks = list[list[Tile]]


def audit_ranks(
    walks_of: Callable[[Seat], Walks], block: Block, shape: Shape, ranks: int
) -> Iterator[str]:
    """What is wrong with the walks of all CTAs on each of so many ranks."""
    found: dict[int, dict[tuple[int, int, int], int]] = {}
    for rank in range(ranks):
        walks = walks_of(Seat(rank=rank, ranks=ranks))
        for text in _rank(walks, rank, ranks, shape):
            yield f"rank {rank} of {ranks}: {text}"
        found[rank] = {(t.owner, t.d_row, t.d_col): t.slot for t in chain(*walks)}
        if len(found[rank]) != sum(map(len, walks)):
            yield f"rank {rank} of {ranks} computes a tile twice"
    if any(slots != found[0] for slots in found.values()):
        yield f"{ranks} ranks do not number the same tiles alike"


def audit_alike(
    walks_of: Callable[[Seat], Walks], block: Block, shape: Shape, ranks: int
) -> Iterator[str]:
    """The same where each rank has all of them: each CTA takes those that it is to wait for in the same order as all others do, so of all
    that wait somebody has sent the first."""
    slots: list[dict[tuple[int, int], int]] = []
    order: TopologicalSorter[tuple[int, int]] = TopologicalSorter()
    for rank in range(ranks):
        walks = walks_of(Seat(rank=rank, ranks=ranks))
        for first, then in chain(*map(pairwise, walks)):
            order.add((then.d_row, then.d_col), (first.d_row, first.d_col))
        for text in _alike(walks, rank):
            yield f"rank {rank} of {ranks}: {text}"
        slots.append({(t.d_row, t.d_col): t.slot for t in chain(*walks)})
    if any(x != slots[0] for x in slots):
        yield f"{ranks} ranks do not number the same tiles alike"
    try:
        order.prepare()
    except CycleError:
        yield f"CTAs of {ranks} ranks may wait for each other: they take the same tiles in another order"


def _alike(walks: Walks, rank: int) -> Iterator[str]:
    """Of one, tile by tile."""
    every = list(chain(*walks))
    for t in every:
        at = f"the tile at {(t.d_row, t.d_col)}"
        if (t.owner, t.place, t.a_row) != (rank, -1, t.d_row):
            yield f"{at} is multiplied from row {t.a_row} of A on, by rank {t.owner}"
        if not 0 <= t.slot < t.slots:
            yield f"{at} has slot {t.slot} of {t.slots}"
    if len({t.slot for t in every}) < len(every):
        yield "two tiles have one slot"


def own(walks: Walks) -> Walks:
    """Of each CTA, the tiles that it stores."""
    return [[t for t in walk if t.place < 0] for walk in walks]


def _rank(walks: Walks, rank: int, ranks: int, shape: Shape) -> Iterator[str]:
    """Of one, tile by tile."""
    for cta, walk in enumerate(walks):
        places = [t.place for t in walk]
        if places != sorted(places, reverse=True):
            yield f"CTA {cta} waits for others before it has sent them all of theirs"
    every = list(chain(*walks))
    for t in every:
        at = f"the tile at {(t.d_row, t.d_col)} of rank {t.owner}"
        if not 0 <= t.owner < ranks or t.a_row != t.owner * shape[0] + t.d_row:
            yield f"{at} is multiplied from row {t.a_row} of A on"
        if t.place != (rank - t.owner) % ranks - 1:
            yield f"{at} is sent to place {t.place}"
        if not 0 <= t.slot < t.slots:
            yield f"{at} has slot {t.slot} of {t.slots}"
    for owner in range(ranks):
        slots = [t.slot for t in every if t.owner == owner]
        if len({*slots}) < len(slots):
            yield f"two tiles of rank {owner} have one slot"


def audit_gathered(
    walks: Walks, block: Block, rows: int, seat: Seat, chunk_rows: int
) -> Iterator[str]:
    """What is wrong with the walks of all CTAs on one rank, whose A has so many rows of each."""
    for cta, walk in enumerate(walks):
        phases = [(t.group - seat.rank) % seat.ranks for t in walk]
        if phases != sorted(phases):
            yield f"CTA {cta} waits for rows that come later than others"
    for t in chain(*walks):
        at = f"the tile at {(t.d_row, t.d_col)} of rank {t.group}"
        if t.a_row != t.d_row:
            yield f"{at} is multiplied from row {t.a_row} of A on"
        sender, chunk = divmod(t.flag, MOST_CHUNKS)
        last = min(t.a_row + block.m, rows) - 1
        if sender != (t.group - seat.rank) % seat.ranks - 1 or chunk != last // chunk_rows:
            yield f"{at} waits for flag {t.flag}"
