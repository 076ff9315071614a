"""What a launch is told of its groups."""

from __future__ import annotations

from dataclasses import dataclass, field

from .epilogue import Values


@dataclass(frozen=True, kw_only=True)
class Groups:
    """count: of them. rows: of one, as far as the host knows; None: M. table: the kernel parameter that says on
    the device what the host does not know, if there is one. whole_k: each product is added up in the order of
    K, whatever the shape, as by one CTA: the config that is chosen divides K among none."""

    count: int
    rows: int | None = None
    table: Values = field(default_factory=dict)
    whole_k: bool = False


ALONE = Groups(count=1)
