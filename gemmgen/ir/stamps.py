"""Kernel IR statements that note when a warpgroup passes a place; instrument inserts them.

One thread of each warpgroup writes to a ring of its own in global memory, so nobody waits for anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .blocks import Stmt

# Bytes of a ring's head and of each stamp, as templates/stamps.j2 lays them out.
HEAD, STAMP = 64, 16


def ring_bytes(capacity: int) -> int:
    """Of a ring that keeps so many stamps; 0 of a kernel that keeps none."""
    return HEAD + STAMP * capacity if capacity else 0


Place = Literal["role", "tile", "block"]  # inside no loop, ForTiles, or ForK too


@dataclass(frozen=True, kw_only=True)
class OpenStamps(Stmt):
    """The role begins: note the SM's clock and, to relate SMs, nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class StampTile(Stmt):
    """The next tile begins: stamps carry its number."""


@dataclass(frozen=True, kw_only=True)
class Stamp(Stmt):
    """What stands before this is over. event: of the role's stamps, which one."""

    event: int
    place: Place


@dataclass(frozen=True, kw_only=True)
class CloseStamps(Stmt):
    """The role ends: note both clocks again, and how many stamps there were."""


STAMPS = OpenStamps | StampTile | Stamp | CloseStamps
