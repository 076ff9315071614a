"""The tile of a CTA, the ring that feeds it, and the warpgroups that multiply it."""

from __future__ import annotations

from typing import Any

from .lever import C, Lever, choice, integer

LEAST_STAGES = 3


def _fewer(c: C) -> tuple[dict[str, Any], ...]:
    return ({"stages": c.stages - 1},) if c.stages > LEAST_STAGES else ()


BLOCK_M = Lever(name="block_m", values=integer(8, 256, 8), default=128, sums=False)
BLOCK_N = Lever(name="block_n", values=integer(8, 256, 8), default=128, sums=False)
BLOCK_K_BYTES = Lever(
    name="block_k_bytes",
    values=choice(32, 64, 128, 256),
    default=128,
    word="{} bytes of K",
)
STAGES = Lever(
    name="stages", values=integer(1, 16), default=4, others=_fewer, matters=80, sums=False
)
CONSUMERS = Lever(name="consumers", values=choice(1, 2, 3), default=2, sums=False)
