"""What a profiler would say: instructions by role, bytes copied, bank conflicts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from .fiber import WARP

if TYPE_CHECKING:
    from .group import Group
    from .syntax import Instruction

BANKS = 32
BANK_BYTES = 4
WAVEFRONT = 128  # bytes of shared memory per wavefront


@dataclass(kw_only=True)
class Site:
    """One shared-memory instruction, over all its executions by a warp."""

    executions: int = 0
    wavefronts: int = 0
    minimum: int = 0

    @property
    def conflicts(self) -> int:
        """Wavefronts beyond what the bytes need."""
        return self.wavefronts - self.minimum


@dataclass(kw_only=True)
class Stats:
    """Of one launch. Instructions are counted once per warp."""

    instructions: Counter[int] = field(default_factory=Counter)  # by warpgroup of the CTA
    opcodes: dict[int, Counter[str]] = field(default_factory=dict)  # the same, by root
    copies: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)  # (site, kind)
    sites: dict[str, Site] = field(default_factory=dict)  # shared memory, by instruction
    approximate: frozenset[str] = frozenset()  # opcodes computed exactly that hardware approximates
    turns: int = 0

    def copied(self, instruction: Instruction, kind: str, count: int) -> None:
        found = self.copies.setdefault((str(instruction), kind), Counter())
        found["count"] += 1
        found["bytes"] += count

    @property
    def bytes_loaded(self) -> int:
        return sum(c["bytes"] for (_, kind), c in self.copies.items() if kind == "load")

    @property
    def bytes_stored(self) -> int:
        return sum(c["bytes"] for (_, kind), c in self.copies.items() if kind == "store")

    @property
    def conflicts(self) -> int:
        return sum(s.conflicts for s in self.sites.values())

    def finished(self, group: Group) -> None:
        """Count what a group executed."""
        role = group.first // 128
        roots = self.opcodes.setdefault(role, Counter())
        for count, instruction in zip(group.counts, group.program.body, strict=False):
            if count:
                roots[instruction.parts[0]] += count
                self.instructions[role] += count

    def shared_access(self, i: Instruction, addresses: Any, size: int, lanes: Any) -> None:
        """Bank conflicts of one access by each warp in `lanes`."""
        site = self.sites.setdefault(str(i), Site())
        warps = lanes // WARP
        ends = [0, *(np.flatnonzero(warps[1:] != warps[:-1]) + 1).tolist(), warps.size]
        for first, end in pairwise(ends):  # lanes come in order
            mine = addresses[first:end]
            base = int(mine[0]) // WAVEFRONT * WAVEFRONT  # which moves no bank
            wavefronts, least = conflicts((mine - base).tobytes(), size)
            site.executions += 1
            site.wavefronts += wavefronts
            site.minimum += least


@lru_cache(maxsize=4096)
def conflicts(raw: bytes, size: int) -> tuple[int, int]:
    """(wavefronts, fewest possible) of one warp's access: lanes that use the same word share it, and
    each bank serves one word at a time. Wide accesses go in groups of lanes of 128 bytes."""
    addresses = np.frombuffer(raw, np.int64)
    per_pass = max(WAVEFRONT // max(size, BANK_BYTES), 1)
    total = least = 0
    for start in range(0, addresses.size, per_pass):
        part = addresses[start : start + per_pass]
        words = np.unique(part[:, None] // BANK_BYTES + np.arange(max(size // BANK_BYTES, 1)))
        total += int(np.bincount(words % BANKS).max())
        least += -(-words.size // BANKS)
    return total, least
