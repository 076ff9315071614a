"""Tiles that consumer warpgroups take in turns (docs/adr/0027-ping-pong.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..config import Config
from ..cost import count_tiles
from ..cost_launch import promotes
from ..problem import Problem, Shape
from ..target import Target
from .pieces import divided

ROWS = 128  # of a tile: two waves. With one, A and B are read more often; with three, B's columns must be few
# block_n; narrower ones are read more often, wider ones have no registers.
WIDTHS = range(96, 193, 16)


def in_turns(
    problem: Problem, tile: Config, shape: Shape, target: Target, groups: int
) -> Iterator[Config]:
    """`tile` with each of two consumers at a tile of its own, with D in pieces and whole, where that may pay: sums stay
    in the tensor core, as one warpgroup alone hides no promotion, and SMs have more than a tile each."""
    if promotes(problem) or tile.swap_ab or (tile.block_m, tile.consumers) != (ROWS, 2):
        return
    if tile.block_n not in WIDTHS or count_tiles(tile, shape, groups) <= target.sms:
        return
    turns = replace(tile, ping_pong=True)
    yield from divided(problem, turns)
    yield turns
