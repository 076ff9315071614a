"""In which order tiles are walked: the one whose wave reads the fewest rows of A and B."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config
from ..cost_launch import ceil
from ..ir.row_sums import windows
from ..problem import Problem, Shape
from ..target import Target

PANELS = (8, 16, 4)  # flat between 8 and 16; the first wins a tie


def with_raster(problem: Problem, c: Config, shape: Shape, target: Target) -> Config:
    """`c` with the raster and panel whose wave reads the fewest rows of A and B together. Where tiles outside of windows are not multiplied,
    the order says who has more of them: with runs of the same columns one after the other the most loaded CTA has 1.03 of the mean where
    2048 queries' windows have half of 4096 to 65536 keys, with those of the same rows up to 1.7."""
    if windows(problem.epilogue):
        return replace(c, raster="n", panel=1)
    rasters = ((r, g) for r in "mn" for g in PANELS)
    raster, panel = min(
        rasters, key=lambda x: sum(wave_rows(c, c.multicast, x[0], x[1], shape, target))
    )
    return replace(c, raster=raster, panel=panel)


def wave_rows(
    c: Config, multicast: str, raster: str, panel: int, shape: Shape, target: Target
) -> tuple[int, int]:
    """Rows of A and of B that the tiles of a full wave read, with these of `c`'s fields changed."""
    across = {"a": (1, 2), "b": (2, 1)}.get(multicast, (1, 1))  # tiles of M, N in a cluster
    side = {"m": c.block_m * across[0], "n": c.block_n * across[1]}
    tiles = {"m": ceil(shape[0], side["m"]), "n": ceil(shape[1], side["n"])}
    clusters = target.sms // (across[0] * across[1] * c.split_k)
    other = "n" if raster == "m" else "m"
    wide = min(ceil(clusters, min(panel, tiles[raster])), tiles[other])
    high = min(max(panel, ceil(clusters, wide)), tiles[raster])  # short panels: more of them
    rows = {raster: high * side[raster], other: wide * side[other]}
    return rows["m"], rows["n"]
