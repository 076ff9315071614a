"""In which order tiles are computed, as a picture: the corner of D, each tile with the wave it is in."""

from __future__ import annotations

from gemmgen.pipeline import lower
from gemmgen.runtime.launch import grid
from gemmgen.schedulers import order as tiles_of
from gemmgen.see.page import Cell, Grid, Page
from gemmgen.target import H200

from .steps import Kernel

ROWS, COLUMNS, HUES = 16, 20, 8  # of the picture; colours that it has


def order(before: Kernel | None, after: Kernel) -> Page:
    """The two orders below each other."""
    grids = tuple(_grid(k) for k in (before, after) if k is not None)
    return Page(title="The order of tiles", blocks=grids)


def _grid(k: Kernel) -> Grid:
    kernel = lower(k.problem, k.config)
    ctas = grid(kernel, k.shape, H200.sms, 1)
    waves: dict[tuple[int, int], int] = {}
    for cta in range(ctas):
        walk = tiles_of(kernel.scheduler, kernel.block, kernel.cluster, k.shape, ctas, cta)
        for wave, tile in enumerate(walk):
            waves[tile.d_row // kernel.block.m, tile.d_col // kernel.block.n] = wave
    return Grid(
        title=f"panel={k.config.panel}: which wave of {ctas} CTAs computes which tile of D",
        columns=tuple(f"n{c * kernel.block.n}" for c in range(COLUMNS)),
        rows=tuple(f"m{r * kernel.block.m}" for r in range(ROWS)),
        cells=tuple(
            tuple(Cell(label=str(waves[r, c]), hue=waves[r, c] % HUES) for c in range(COLUMNS))
            for r in range(ROWS)
        ),
    )
