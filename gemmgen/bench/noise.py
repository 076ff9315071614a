"""Which of several medians can be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Protocol

FASTEST, TIE, SLOWER = "fastest", "tie", ""


class Measured(Protocol):
    """Anything with a median and an interquartile range, in one unit."""

    @property
    def median(self) -> float: ...

    @property
    def iqr(self) -> float: ...


def iqr(values: Sequence[float]) -> float:
    """The interquartile range of at least one value, in its unit; below four values all of their range."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return ordered[-1 - quarter] - ordered[quarter]


def spread(values: Sequence[float]) -> float:
    """The interquartile range over the median."""
    return iqr(values) / median(values)


def tied(x: Measured, y: Measured) -> bool:
    """Whether the medians are no further apart than the larger of the two interquartile ranges."""
    return abs(x.median - y.median) <= max(x.iqr, y.iqr)


def standings(measured: Mapping[str, Measured]) -> dict[str, str]:
    """By name: "fastest" for the least median if no other is tied with it, "tie" for it and those that
    are tied with it, "" for the rest."""
    if not measured:
        return {}
    best = min(measured, key=lambda name: measured[name].median)
    near = [name for name in measured if tied(measured[name], measured[best])]
    first = FASTEST if len(near) == 1 else TIE
    return {name: first if name in near else SLOWER for name in measured}
