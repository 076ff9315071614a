"""Which consumer warpgroups share a tile, and what they are called."""

from __future__ import annotations

from ..ir.nodes import Kernel


def sharing(kernel: Kernel) -> tuple[tuple[int, int | None], ...]:
    """Number and name of each: where they take tiles in turns, one without a name stands for all."""
    if kernel.consumer.turns > 1:
        return ((0, None),)
    return tuple((w, w) for w in range(kernel.consumers))
