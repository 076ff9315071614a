"""P13 where CTAs take equal stretches of all tiles' K blocks: each K block once, and a tile's end where its finisher looks for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..schedulers import Tile

At = tuple[int, int, int]


def whole(walks: list[list[Tile]], k_blocks: int) -> list[list[Tile]]:
    """The tiles that each CTA finishes, with all of their K blocks."""
    return [
        [replace(t, k_blocks=k_blocks, slot=0, others=0) for t in walk if not t.k_first]
        for walk in walks
    ]


def stretches(walks: list[list[Tile]], block_k: int, k_blocks: int) -> Iterator[str]:
    """What is wrong with how `k_blocks` of each tile are dealt out to CTAs that walk so."""
    sizes = [sum(t.k_blocks for t in walk) for walk in walks]
    if max(sizes) - min(sizes) > 1 or not min(sizes):
        yield f"CTAs have from {min(sizes)} to {max(sizes)} K blocks"
    slots = [{t.slot for t in walk} for walk in walks]
    if sorted(s for mine in slots for s in mine) != list(range(len(walks))):
        yield f"CTAs have the slots {slots}"
    holders: dict[At, list[tuple[int, Tile]]] = defaultdict(list)
    for cta, walk in enumerate(walks):
        for t in walk:
            holders[t.group, t.d_row, t.d_col].append((cta, t))
        if any(t.k_first for t in walk[1:]):
            yield f"CTA {cta} sends more than its slot holds"
    for at, held in holders.items():
        held.sort(key=lambda x: x[1].k_first)
        for text in _tile(held, block_k, k_blocks):
            yield f"the tile at {at[1:]} of group {at[0]}: {text}"


def _tile(held: Sequence[tuple[int, Tile]], block_k: int, k_blocks: int) -> Iterator[str]:
    """Of one, those that have a part of it, in order of K."""
    (cta, _), rest, at = held[0], held[1:], 0
    for _, t in held:
        if t.k_first != at * block_k or t.k_blocks < 1:
            yield f"K block {at} is not where the next part begins"
        at += t.k_blocks
    if at != k_blocks:
        yield f"{at} of {k_blocks} K blocks are summed"
    for i, (_, t) in enumerate(held, 1):
        behind = [other.slot for _, other in held[i:]]
        if behind != list(range(t.slot + 1, t.slot + 1 + t.others)):
            yield f"slot {t.slot} has {t.others} others behind it, the rest is in {behind}"
    if any(other >= cta for other, _ in rest):
        yield f"CTA {cta} waits for one that may begin after it"
