"""The tile of a CTA, the ring that feeds it, and the warpgroups that multiply it."""

from __future__ import annotations

from .lever import C, Changes, L, Lever, choice, integer

LEAST_STAGES = 3
# Cycles of an epilogue more with three consumers: 4096 x 24576 x 1536 with 192x128 against 256x128.
EPILOGUE_OF_THREE = 400.0


def _fewer(c: C) -> tuple[Changes, ...]:
    return ({"stages": c.stages - 1},) if c.stages > LEAST_STAGES else ()


def _price(price: Changes, of: L, c: C) -> Changes:
    return {"epilogue": price["epilogue"] + EPILOGUE_OF_THREE * (c.consumers == 3)}


BLOCK_M = Lever(name="block_m", values=integer(8, 256, 8), default=128, sums=False, tile=True)
BLOCK_N = Lever(name="block_n", values=integer(8, 256, 8), default=128, sums=False, tile=True)
BLOCK_K_BYTES = Lever(
    name="block_k_bytes",
    values=choice(32, 64, 128, 256),
    default=128,
    word="{} bytes of K",
)
STAGES = Lever(
    name="stages", values=integer(1, 16), default=4, others=_fewer, matters=80, sums=False
)
CONSUMERS = Lever(
    name="consumers", values=choice(1, 2, 3, 4), default=2, sums=False, tile=True, price=_price
)
