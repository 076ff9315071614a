"""Ping-pong: each consumer warpgroup has a tile of its own, one stores while another multiplies (docs/adr/0027-ping-pong.md)."""

from __future__ import annotations

from .lever import flag

PING_PONG = flag(
    "ping_pong",
    tag="pp",
    word="ping-pong",
    reads="each consumer warpgroup has a tile of its own: one stores while the next multiplies",
    sums=False,
)
