"""What launches take that stream: casts, copies of tokens, sums over experts, and routes."""

from __future__ import annotations

from dataclasses import dataclass

from .target import Target

SHORTEST = 1.9e-6  # seconds: what the least of them took


@dataclass(frozen=True, kw_only=True)
class Stream:
    """share: of HBM's peak that bytes get. seconds: besides, and by item."""

    share: float
    seconds: float = SHORTEST
    per_item: float = 0.0


# By what they do, of layers of experts on one H100 SXM (docs/performance.md, 1 to 16384 tokens of DeepSeek-V3): casts within 5 %
# from 1024 tokens on, sums within 10 %, copies within 25 %, routes, of which items are copies, within 30 %.
STREAMS = {
    "route": Stream(share=1.0, seconds=4.4e-6, per_item=0.35e-9),
    "cast": Stream(share=0.81),
    "spread": Stream(share=0.62),
    "combine": Stream(share=0.89),
}


def seconds(does: str, size: int, target: Target, items: int = 0) -> float:
    """Of a launch that reads and writes `size` bytes, L2 cold. does: of STREAMS."""
    s = STREAMS[does]
    rate = s.share * target.hbm_bytes_per_second
    return s.seconds + size / rate + s.per_item * items
