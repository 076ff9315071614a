"""What a launch is told of its groups."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..config import Config
from ..errors import ArgumentError
from ..heuristics import ANY
from ..ir.counts import MOST_SIDE
from ..ir.groupings import GROUPINGS, summed_k
from ..problem import Problem
from .epilogue import Values


@dataclass(frozen=True, kw_only=True)
class ToldGroups:
    """count: of them. filled: those that have rows, as far as the host knows; None: all. rows: of one that has any, likewise;
    None: M. table: the kernel parameter that says on the device what the host does not know, if there is one. split_k: of the
    config that is chosen, so many CTAs divide K; ANY: as many as pay."""

    count: int
    filled: int | None = None
    rows: int | None = None
    table: Values = field(default_factory=dict)
    split_k: int = ANY


ALONE = ToldGroups(count=1)


def summed_of(p: Problem, k: int, groups: ToldGroups) -> int:
    """The K of an element's sum, of which each group has `k`. Raises ArgumentError for more than is counted."""
    step = Config.block_k_bytes // p.a.bytes
    found = summed_k(GROUPINGS[p.grouping].summed, k, groups.count, step)
    if found > MOST_SIDE:
        allowed = f"must have at most {MOST_SIDE} of K together, each in whole K blocks"
        raise ArgumentError("a groups", groups.count, allowed)
    return found
