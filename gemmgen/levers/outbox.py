"""Sums for other GPUs that this one's copy engine sends (docs/adr/0058-outbox.md)."""

from __future__ import annotations

from ..ir.collectives import REDUCE_SCATTER
from .lever import AS_IT_IS, C, Changes, L, flag


def _offers(of: L, c: C) -> tuple[Changes, ...]:
    """Also it, where sums travel."""
    return ({}, {"outbox": True}) if of.problem.collective == REDUCE_SCATTER else AS_IT_IS


OUTBOX = flag(
    "outbox",
    tag="outbox",
    word="outbox",
    reads="sums for other GPUs wait in this one's memory, whence its copy engine sends them",
    sums=False,
    offers=_offers,
    matters=22,
)
