"""Lanes of one warpgroup that stand at the same instruction, and what keeps them there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

WARP = 32
LANES = 128  # of a warpgroup
AGAIN = -1  # an operation's result: the fiber waits, and executes the same instruction when it may
MOVED = -2  # the operation changed the fibers itself
NOWHERE = 1 << 60


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Why a fiber cannot run. `merge`: fibers arriving at the same instruction join it."""

    ready: Callable[[], bool]
    what: Callable[[], str]
    merge: bool = False
    aligned: bool = False  # for the lanes with which it executes an .aligned instruction


class Fiber:
    """Lanes of one group that stand at the same instruction."""

    __slots__ = ("count", "mask", "pc", "wait", "warps")

    def __init__(self, pc: int, mask: Mask) -> None:
        self.pc = pc
        self.wait: Wait | None = None
        self.set_mask(mask)

    def set_mask(self, mask: Mask) -> None:
        self.mask = mask
        self.count = int(mask.sum())
        self.warps = int(mask.reshape(-1, WARP).any(1).sum())

    def can_run(self) -> bool:
        if self.wait is not None and self.wait.ready():
            self.wait = None
        return self.wait is None


def each(lanes: int) -> Iterator[int]:
    """The lanes of a mask."""
    while lanes:
        low = lanes & -lanes
        yield low.bit_length() - 1
        lanes ^= low
