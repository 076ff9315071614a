"""The mbarrier object (PTX ISA, "mbarrier"): phases, pending arrivals, and bytes in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .errors import ProtocolError

if TYPE_CHECKING:
    from .tracker import Clock, Tracker

LIMIT = (1 << 20) - 1  # of the arrival count, and of the tx-count either way


@dataclass(kw_only=True, eq=False)
class MBarrier:
    """Phase `phase` completes when no arrival is pending and no byte is outstanding."""

    name: str
    count: int
    tracker: Tracker
    agent: int  # stands for the loads that complete here; its time is the phase, plus one
    initialiser: int  # stands for the mbarrier.init of a warp
    born: int  # at this time of its clock
    thread: int  # that initialised it
    pending: int = 0
    tx: int = 0
    phase: int = 0
    storing: int | None = None  # stands for the st.async that complete here
    fenced: bool = False  # init was made visible to the async proxy and the cluster
    publishing: Clock = field(init=False)  # by this phase's arrivals
    published: Clock = field(init=False)  # by the last completed phase's

    def __post_init__(self) -> None:
        if not 1 <= self.count <= LIMIT:
            raise ProtocolError(f"{self.name}: an arrival count of {self.count}")
        self.pending = self.count
        self.publishing = self.tracker.empty()
        self.published = self.tracker.empty()

    def __str__(self) -> str:
        return (
            f"{self.name}: phase {self.phase}, {self.pending} of {self.count} arrivals pending, "
            f"{self.tx} bytes outstanding"
        )

    def passed(self, parity: int) -> bool:
        """Has the phase of this parity completed: is the current phase of the other one?"""
        return self.phase & 1 != parity

    def check_visible(self, seen: Clock, who: str) -> None:
        if seen[0, self.initialiser] < self.born:
            raise ProtocolError(f"{who}: uses {self.name} unordered with its mbarrier.init")

    def check_fenced(self, who: str) -> None:
        """For what the async proxy or another CTA does to the barrier."""
        if not self.fenced:
            raise ProtocolError(
                f"{who}: uses {self.name}, but no fence.mbarrier_init (or fence.proxy.async) followed "
                "its mbarrier.init in the initialising thread"
            )

    def expect(self, count: int, who: str) -> None:
        self.tx += count
        self._check_tx(who)

    def arrive(self, clock: Clock | None, count: int, who: str) -> None:
        """`clock` is what the arriving warp publishes, None for a relaxed arrival."""
        if count > self.pending:
            raise ProtocolError(f"{who}: one arrival too many at {self}")
        self.pending -= count
        if clock is not None:
            self.publishing = np.maximum(self.publishing, clock)
        self._advance()

    def complete(self, count: int, issued_in: int, who: str) -> None:
        """`count` bytes of a load have landed, issued while the phase was `issued_in`."""
        if self.phase != issued_in:
            raise ProtocolError(
                f"{who}: its {count} bytes land in phase {self.phase} of {self.name}, but it was "
                f"issued in phase {issued_in}, which completed without them"
            )
        self.tx -= count
        self._check_tx(who)
        self._advance()

    def _check_tx(self, who: str) -> None:
        if abs(self.tx) > LIMIT:
            raise ProtocolError(f"{who}: the tx-count overflows at {self}")

    def _advance(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.count
            self.published, self.publishing = self.publishing, self.tracker.empty()

    def stores(self) -> int:
        """The agent of the st.async that complete here; its time is the phase, plus one."""
        if self.storing is None:
            text = f"stores that complete on {self.name}"
            self.storing = self.tracker.agent(("stores", self.name), text)
        return self.storing

    def acquire(self, agent: int, lanes: int, *, of_cluster: bool) -> None:
        """These lanes of a warp have seen the last phase complete; `of_cluster`: at cluster scope."""
        self.tracker.acquire(agent, self.published, lanes)
        self.tracker.observe(agent, self.agent, self.phase, lanes)
        if of_cluster and self.storing is not None:
            self.tracker.observe(agent, self.storing, self.phase, lanes)
