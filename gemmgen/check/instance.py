"""How often a kernel's loops run in what is proved of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..ir.dealing import Part, of_cta, parts


@dataclass(frozen=True, kw_only=True)
class Instance:
    """How often the loops run: K blocks per tile, tiles per CTA; every CTA of the cluster alike.

    depths: the K blocks of each tile, where groups have K of their own; neighbours with equally many
    are in one group. `k_blocks` is then the most.
    cut: the tiles in whose every piece D's rows (a ragged group's) end. rows: instead, of each CTA of the cluster
    and each of its tiles, how many rows D has from the tile's first on.
    ctas: where each takes a stretch of all tiles' K blocks, how many. `tiles` are then those of all together.
    """

    k_blocks: int
    tiles: int
    depths: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    rows: tuple[tuple[int, ...], ...] = ()
    ctas: int = 1

    @property
    def counts(self) -> tuple[int, ...]:
        """K blocks by tile."""
        return self.depths or (self.k_blocks,) * self.tiles

    def parts(self, cta: int) -> tuple[Part, ...]:
        """What a CTA has of the tiles, where they take stretches."""
        return tuple(parts(of_cta(cta, self.ctas), self.ctas, self.tiles, self.k_blocks))

    def group(self, tile: int) -> int:
        return sum(a != b for a, b in pairwise(self.counts[: tile + 1]))

    def opens(self, tile: int) -> bool:
        """Whether the tile is the first of a group that has K blocks."""
        first = tile == 0 or self.group(tile) != self.group(tile - 1)
        return first and self.counts[tile] > 0

    def __str__(self) -> str:
        if self.depths:
            return f"{', '.join(map(str, self.depths))} K blocks in the tiles of each CTA"
        cut = f", rows end in tiles {', '.join(map(str, self.cut))}" if self.cut else ""
        if self.ctas > 1:
            dealt = f"{_many(self.tiles, 'tile')} dealt out to {self.ctas} CTAs"
            return f"{_many(self.k_blocks, 'K block')} per tile, {dealt}{cut}"
        per_cta = _many(self.tiles, "tile")
        return f"{_many(self.k_blocks, 'K block')} per tile, {per_cta} per CTA{cut}"


def _many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
