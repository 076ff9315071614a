"""A config in a few words."""

from __future__ import annotations

from ..config import Config
from ..levers import LEVERS


def spelled(c: Config) -> str:
    """A config in a few words: tile, consumers, stages, and what is not plain."""
    parts = [
        f"{c.block_m}x{c.block_n}",
        f"{c.consumers}wg",
        f"{c.stages}st",
        f"{c.raster}{c.panel}",
    ]
    return " ".join(parts + [word for x in LEVERS if (word := x.said(c))])


def tile(c: Config) -> str:
    """What of a config the passes refused: the tile and who shares it."""
    parts = [f"{c.block_m}x{c.block_n}", f"{c.consumers}wg"]
    words = [x.said(c) for x in LEVERS if x.tile or x.name == "multicast"]
    return " ".join([*parts, *filter(None, words)])
