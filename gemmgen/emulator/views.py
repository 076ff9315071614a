"""What something that happens is ordered after, of one cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tracker import Tracker


@dataclass(frozen=True, kw_only=True)
class View:
    """What something that happens is ordered after."""

    tracker: Tracker
    ordered: Any  # the row of a clock

    def after(self, agent: int, time: int) -> bool:
        return self.tracker.covers(self.ordered, agent, time)
