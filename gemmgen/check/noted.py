"""What a stamped kernel notes on its way: data beside a program's operations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Noted:
    """A stamp, written when the agent has done `done` of its operations. Nobody reads it: it is no operation."""

    done: int
    event: int
    tile: int
    k: int
