"""What a launch is told of its groups."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..heuristics import ANY
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
