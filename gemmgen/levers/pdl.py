"""A launch that begins while the one before it ends (docs/adr/0012-dependent-launches.md)."""

from __future__ import annotations

from .lever import flag

PDL = flag(
    "pdl",
    tag="pdl",
    word="overlapping",
    reads="begins while the launch before it ends",
    sums=False,
    ready=True,
)
