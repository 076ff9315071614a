"""Loads of shared memory that may still be under way.

A load takes as long as those before it, of global memory too. An arrival at the scope of its own CTA does not wait for it where it
goes to another CTA, whose next write may then come first (ADR 0003). A warp has what it loaded once it has waited for products that it
issued since, or stores what it computed of that: a store of any kind is taken for one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .tracker import Tracker


class Loads:
    """Of a cluster's warps, by agent: the times of those."""

    def __init__(self) -> None:
        self._times: dict[int, list[int]] = defaultdict(list)

    def begin(self, agent: int, time: int) -> None:
        if time not in self._times[agent][-1:]:
            self._times[agent].append(time)

    def end(self, agent: int, time: int) -> None:
        """The warp has what it loaded up to that time."""
        if self._times[agent]:
            self._times[agent] = [x for x in self._times[agent] if x > time]

    def hold_back(self, clock: Any, tracker: Tracker, agent: int) -> None:
        """Of what the warp publishes, what is not over."""
        if self._times[agent]:
            columns = [agent, *tracker.lanes_of(agent)]
            clock[:, columns] = np.minimum(clock[:, columns], self._times[agent][0] - 1)
