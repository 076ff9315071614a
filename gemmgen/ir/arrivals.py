"""Kernel IR resources of rows of A that arrive from other ranks while a launch runs (docs/adr/0051-all-gather.md).

A rank sends its rows in chunks, one after the other, and after each raises the chunk's flag, in the memory of the rank that reads
them: 64 bits, the epoch of the launch that the rows are for.
"""

from __future__ import annotations

from dataclasses import dataclass

ARRIVALS = "arrivals"  # the kernel's parameter that points to its rank's flags
SEEN = "arrived"  # the register that says which of them a thread has seen


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """What of A comes from other ranks: tensors, by their tensor maps' names; flags that each of the others has, one for a chunk
    of its rows; and how many buffers of rows are there, of which launches take one after the other."""

    tensors: tuple[str, ...] = ()
    chunks: int = 0
    buffers: int = 2


NO_ARRIVALS = Arrivals()
