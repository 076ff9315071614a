"""Which consumer warpgroups share a tile, and what they are called."""

from __future__ import annotations

from ..ir.nodes import Kernel


def sharing(kernel: Kernel) -> tuple[tuple[int, int | None], ...]:
    """Number and name of each: where each has all of a tile's rows, one without a name stands for all."""
    if kernel.consumer.numbered:
        return ((0, None),)
    return tuple((w, w) for w in range(kernel.consumers))
