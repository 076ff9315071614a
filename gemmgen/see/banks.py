"""Bank conflicts, counted from addresses as the emulator counts them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..emulator.stats import BANK_BYTES, BANKS, conflicts

Addresses = npt.NDArray[np.int64]  # bytes from the start of a CTA's dynamic shared memory


@dataclass(frozen=True, kw_only=True)
class Banks:
    """Of accesses by one warp, or of core matrices. wavefronts: turns of the banks that they take; fewest:
    that as many bytes can take."""

    accesses: int
    wavefronts: int
    fewest: int

    @property
    def conflicts(self) -> int:
        return self.wavefronts - self.fewest


def count(accesses: Iterable[Any], size: int) -> Banks:
    """accesses: the addresses of each one's pieces of `size` bytes, which go 128 bytes at a time."""
    found = [conflicts(np.ascontiguousarray(a, np.int64).tobytes(), size) for a in accesses]
    return Banks(
        accesses=len(found),
        wavefronts=sum(took for took, _ in found),
        fewest=sum(least for _, least in found),
    )


def total(found: Iterable[Banks]) -> Banks:
    """Of all of them together."""
    every = list(found)
    return Banks(
        accesses=sum(b.accesses for b in every),
        wavefronts=sum(b.wavefronts for b in every),
        fewest=sum(b.fewest for b in every),
    )


def bank(address: int) -> int:
    """The bank that holds the word at `address`."""
    return address // BANK_BYTES % BANKS
