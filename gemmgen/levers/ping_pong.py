"""Consumer warpgroups that take tiles in turns: one stores, another multiplies (docs/adr/0027-ping-pong.md)."""

from __future__ import annotations

from .lever import flag

PING_PONG = flag(
    "ping_pong",
    tag="pp",
    word="ping-pong",
    reads="a warpgroup stores its tile while the next multiplies another",
)
