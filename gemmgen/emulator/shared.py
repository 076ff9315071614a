"""One CTA's shared memory: bytes, which of them have a value, barriers, and the race detector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import IllegalAccess, ProtocolError, UninitializedRead
from .races import WORD, Shadow
from .spaces import SHARED_BASE

if TYPE_CHECKING:
    from .mbarrier import MBarrier
    from .tracker import Clock, Tracker

POISON = 0xFF
ROUND = 128  # bytes, so that chunks and words come out even


class SharedMemory:
    """Indexed by shared address: what lies below SHARED_BASE belongs to the system."""

    def __init__(self, end: int, tracker: Tracker, cta: int) -> None:
        size = -(-end // ROUND) * ROUND
        self.end = end
        self.data = np.full(size, POISON, np.uint8)
        self.known = np.zeros(size, np.bool_)
        self.shadow = Shadow(size, tracker, cta)
        self.barriers: dict[int, MBarrier] = {}
        self.barrier_words = np.zeros(size // WORD, np.bool_)
        self.cta = cta

    def check(self, low: int, high: int, who: str) -> None:
        """[low, high) lies in the CTA's shared memory."""
        if low < SHARED_BASE or high > self.end:
            raise IllegalAccess(
                f"{who}: shared addresses {low:#x}..{high - 1:#x} of CTA {self.cta}; its memory is "
                f"{SHARED_BASE:#x}..{self.end - 1:#x}"
            )

    def read(
        self, at: Any, words: Any, agent: int, time: int, seen: Clock, who: str, proxy: bool
    ) -> Any:
        """`data[at]`: `at` is a slice or an index array, `words` what of the shadow it touches."""
        self._no_barriers(words, who)
        self.shadow.read(words, agent, time, seen, who, proxy)
        if not self.known[at].all():
            bad = np.arange(self.data.size)[at][~self.known[at]]
            raise UninitializedRead(
                f"{who}: shared address {int(bad[0]):#x} of CTA {self.cta} was never written"
            )
        return self.data[at]

    def update(self, at: Any, words: Any, agent: int, time: int, seen: Clock, who: str) -> Any:
        """`data[at]`, which is read and written at once; what it becomes is `put`."""
        self._no_barriers(words, who)
        self.shadow.update(words, agent, time, seen, who)
        self.check_known(self.known[at], who)
        return self.data[at]

    def claim(self, words: Any, agent: int, time: int, seen: Clock, who: str, proxy: bool) -> None:
        """Announce a write: now for a plain store, at issue for an asynchronous one."""
        self._no_barriers(words, who)
        self.shadow.write(words, agent, time, seen, who, proxy)

    def claim_read(self, words: Any, agent: int, time: int, seen: Clock, who: str) -> None:
        """Announce a read through the async proxy; the bytes are read later."""
        self._no_barriers(words, who)
        self.shadow.read(words, agent, time, seen, who, True)

    def check_known(self, known: Any, who: str) -> None:
        if not known.all():
            raise UninitializedRead(
                f"{who}: {int((~known).sum())} of {known.size} bytes of shared memory of CTA "
                f"{self.cta} that it reads were never written"
            )

    def _no_barriers(self, words: Any, who: str) -> None:
        if self.barriers and self.barrier_words[words].any():
            raise ProtocolError(f"{who}: touches an mbarrier object as if it were data")

    def put(self, at: Any, values: Any) -> None:
        self.data[at] = values
        self.known[at] = True
