"""Where groups or CTAs split K, make a tile without K blocks come out as the epilogue of 0."""

from __future__ import annotations

from dataclasses import replace

from ..ir.nodes import (
    If,
    Kernel,
    LoadBlockScales,
    Mma,
    Stmt,
    TileBody,
    Zero,
)
from ..ir.rewrite import map_stmts, walk
from ..ir.stmts import releases
from ..target import Target


def allow_empty(kernel: Kernel, target: Target) -> Kernel:
    """Zero an accumulator that the tile's first K block would overwrite, and release no stage after a
    K loop that filled none. Sets Mma.fresh; inserts Zero, and If has_blocks. Of windows no sums are needed where there are no K
    blocks."""
    if (
        kernel.slices > 1
    ):  # slice_k clears the sums of who has no K blocks, and releases none of their stages
        return kernel
    if kernel.scheduler.windowed:
        return map_stmts(kernel, lambda s: _skipping(s) if isinstance(s, TileBody) else s)
    if not kernel.groups.depths and kernel.cluster.k == 1:
        return kernel
    kernel = map_stmts(kernel, lambda s: _allowing(s) if isinstance(s, TileBody) else s)
    return map_stmts(kernel, _never)


def _allowing(tile: TileBody) -> TileBody:
    sums = [s.dst for s in walk(tile.main) if isinstance(s, Mma) and s.fresh == "tile"]
    return replace(
        tile,
        setup=(*tile.setup, *(Zero(dst=name) for name in dict.fromkeys(sums))),
        drain=tuple(If(when="has_blocks", body=(s,)) if releases(s) else s for s in tile.drain),
    )


def _skipping(tile: TileBody) -> TileBody:
    """Of no K block there are no scales."""
    scales = LoadBlockScales
    setup = (If(when="has_blocks", body=(s,)) if isinstance(s, scales) else s for s in tile.setup)
    return replace(_allowing(tile), setup=tuple(setup))


def _never(s: Stmt) -> Stmt:
    return replace(s, fresh="never") if isinstance(s, Mma) and s.fresh == "tile" else s
