"""Which shapes each of several processes tunes: all of them together every shape, no two the same.

Each process computes the shares by itself, so they depend on what every one of them has alike: the shapes, the effort, and what the model
says of an H200, whichever GPU is there and whatever was calibrated.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from ...heuristics import rank
from ...target import H200
from ..timing import FLUSH_BYTES, WARMUP
from .jobs import Job
from .session import FINALISTS, SCREENED
from .trial import LAUNCHES

CANDIDATE = 1.0  # seconds to build, load and verify one, besides launches; assumed: it differs with the machine
TICK = 1e-3  # seconds: what is less is not told apart, so that no last bit of a sum decides


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Of each shape: candidates, and rounds in which the finalists are timed."""

    limit: int
    repeats: int


def price(j: Job, of: Effort) -> int:
    """Ticks that tuning `j` takes, as the model says of an H200. Raises as `heuristics.choose`."""
    ranked = rank(j.problem, j.shape, H200, limit=1, groups=j.groups)
    launch = ranked[0].cost.seconds if ranked else 0.0
    flush = 2 * FLUSH_BYTES / H200.hbm_bytes_per_second  # reads and writes
    launches = of.limit * (LAUNCHES + WARMUP + SCREENED) + (FINALISTS + 1) * (WARMUP + of.repeats)
    return round((of.limit * CANDIDATE + launches * (launch + flush)) / TICK)


def shares(prices: Sequence[int], count: int) -> list[list[int]]:
    """Places of `prices`, each in one share, in at most `count` shares: the dearest first, each to the share that has least to do. A
    share's places rise. Those beyond the last have nothing to do."""
    found: list[list[int]] = [[] for _ in range(min(count, len(prices)))]
    loads = [(0, i) for i in range(len(found))]
    for place in sorted(range(len(prices)), key=lambda i: -prices[i]):
        load, i = heapq.heappop(loads)
        found[i].append(place)
        heapq.heappush(loads, (load + prices[place], i))
    return [sorted(x) for x in found]


def share(jobs: Sequence[Job], number: int, count: int, of: Effort) -> list[Job]:
    """Of different jobs those of share `number` of `count`, from 1. Raises as `heuristics.choose`."""
    if count == 1:
        return [*jobs]
    found = shares([price(j, of) for j in jobs], count)
    return [jobs[i] for i in found[number - 1]] if number <= len(found) else []
