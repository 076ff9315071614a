"""Operands that go from global memory straight into registers (docs/adr/0050-direct-weights.md)."""

from __future__ import annotations

from .lever import C, Changes, flag

# Tiles that the tuner tries instead of a swapped one: 64 columns for each of the warpgroups that share it, few rows, and K blocks
# of which registers hold fragments.
WIDE, ROWS, HELD = 64, (8, 16), 2


def _others(c: C) -> tuple[Changes, ...]:
    if not c.swap_ab or c.direct or c.block_m not in ROWS:
        return ()
    plain: Changes = {"consumers": 1, "block_n": WIDE, "stages": HELD, "unroll": HELD}
    plain |= {"multicast": "none", "ping_pong": False, "peek": False, "stream": False}
    plain |= {"in_flight": 0, "weights_ahead": False, "swizzle_ab": None, "registers": None}
    return ({"direct": True, **plain},)


DIRECT = flag(
    "direct",
    tag="direct",
    word="direct",
    reads="warps load their operands into registers, and multiply them by mma.sync",
    others=_others,
    matters=20,
)
