"""Weights that are loaded before the launch before is over (docs/adr/0048-weights-ahead.md)."""

from __future__ import annotations

from .lever import flag

WEIGHTS_AHEAD = flag(
    "weights_ahead",
    tag="ahead",
    word="weights ahead",
    reads="the first stages' B is loaded while the launch before it ends",
    sums=False,
    ready=True,
)
