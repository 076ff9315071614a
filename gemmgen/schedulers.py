"""Schedulers: the order in which a persistent grid walks the output tiles.

Each has a device struct in templates/schedulers/ and a Python twin here; tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .ir.nodes import Block, Cluster, Scheduler


@dataclass(frozen=True)
class Tile:
    """What the device's Tile holds: rows of A, B and D, the column of D (elements) and K blocks."""

    a_row: int
    b_row: int
    d_row: int
    d_col: int
    k_blocks: int


def panels(raster: str, panel: int) -> Scheduler:
    """Panels of `panel` tiles along the raster axis, walked to and fro (snake) along the other."""
    fast, slow = ("m", "n") if raster == "m" else ("n", "m")
    return Scheduler(name="panels", fast=fast, slow=slow, panel=panel)  # type: ignore[arg-type]


def order(
    s: Scheduler, block: Block, cluster: Cluster, shape: tuple[int, int, int], ctas: int, cta: int
) -> Iterator[Tile]:
    """The tiles CTA `cta` of `ctas` computes for shape (M, N, K), in its order."""
    m, n, k = shape
    tiles = {"m": _ceil(m, block.m * cluster.m), "n": _ceil(n, block.n * cluster.n)}
    rank = cta % cluster.size
    for index in range(cta // cluster.size, tiles["m"] * tiles["n"], ctas // cluster.size):
        at = _walk(s, tiles, index)
        row = (at["m"] * cluster.m + rank % cluster.m) * block.m
        col = (at["n"] * cluster.n + rank % cluster.n) * block.n
        yield Tile(row, col, row, col, _ceil(k, block.k))


def _walk(s: Scheduler, tiles: dict[str, int], index: int) -> dict[str, int]:
    panel, off = divmod(index, s.panel * tiles[s.slow])
    height = min(s.panel, tiles[s.fast] - panel * s.panel)
    slow = off // height
    if panel % 2:
        slow = tiles[s.slow] - 1 - slow
    return {s.fast: panel * s.panel + off % height, s.slow: slow}


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
