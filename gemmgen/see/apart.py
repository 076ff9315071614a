"""Marks of a picture moved as little as it takes that none lies over another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import hypot

Place = tuple[float, float]

RINGS = 60  # of half marks around a place, in which there is room for thousands
UPRIGHT = 3.0  # how many steps across are as bad as one up or down, which says another number


def apart(places: Sequence[Place], size: float, low: Place, high: Place) -> list[Place]:
    """Where marks `size` wide and high stand whose centres belong at `places`: the first ones first, each where it
    belongs or near that, between `low` and `high`; rather beside than above or below."""
    found: list[Place] = []
    for x, y in places:
        steps = ((x + i * size / 2, y + j * size / 2) for i, j in _steps())
        free = (at for at in steps if _inside(at, low, high) and _clear(at, found, size))
        found.append((x, y) if _clear((x, y), found, size) else next(free, (x, y)))
    return found


def _clear(at: Place, found: Sequence[Place], size: float) -> bool:
    return all(abs(at[0] - x) >= size or abs(at[1] - y) >= size for x, y in found)


def _inside(at: Place, low: Place, high: Place) -> bool:
    return low[0] <= at[0] <= high[0] and low[1] <= at[1] <= high[1]


@cache
def _steps() -> tuple[tuple[int, int], ...]:
    """The best first."""
    edge = range(-RINGS, RINGS + 1)
    return tuple(
        sorted(
            ((i, j) for i in edge for j in edge), key=lambda at: (hypot(at[0], UPRIGHT * at[1]), at)
        )
    )
