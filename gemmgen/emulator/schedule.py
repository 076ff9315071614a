"""Schedules: what happens next. Results and verdicts must not depend on them; tests vary them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .group import Group


@dataclass(frozen=True, kw_only=True, eq=False)
class Pending:
    """An asynchronous operation in flight; those of one `stream` complete in order."""

    complete: Any  # () -> None
    text: str
    stream: object
    born: int  # turn


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Either a group executes up to `budget` instructions, or an operation completes."""

    group: Group | None = None
    pending: Pending | None = None
    budget: int = 0
    warps: int | None = None  # of the group, as a mask; None: all


class Schedule(Protocol):
    """Chooses among what is possible; at least one of the two sequences is not empty."""

    def next(self, groups: Sequence[Group], pending: Sequence[Pending], turn: int) -> Turn:
        """`groups` can run; `pending` may complete now."""

    def gives_up(self) -> bool:
        """Whether an mbarrier.try_wait returns now, its phase not over (PTX ISA: it waits for a time that
        depends on the system). The next one there of the same threads waits, so that loops end."""


@dataclass(kw_only=True)
class RoundRobin:
    """Groups in turn; an asynchronous operation completes `delay` turns after its issue."""

    budget: int = 400
    delay: int = 2
    impatient: bool = False  # waits give up

    def next(self, groups: Sequence[Group], pending: Sequence[Pending], turn: int) -> Turn:
        if pending and (not groups or pending[0].born + self.delay <= turn):
            return Turn(pending=pending[0])
        return Turn(group=groups[turn % len(groups)], budget=self.budget)

    def gives_up(self) -> bool:
        return self.impatient


@dataclass(kw_only=True)
class Eager:
    """Asynchronous operations complete at once: what nobody waits for still seems to work."""

    budget: int = 400
    impatient: bool = True

    def next(self, groups: Sequence[Group], pending: Sequence[Pending], turn: int) -> Turn:
        if pending:
            return Turn(pending=pending[0])
        return Turn(group=groups[turn % len(groups)], budget=self.budget)

    def gives_up(self) -> bool:
        return self.impatient


@dataclass(kw_only=True)
class Late:
    """Asynchronous operations complete only when nothing else can happen, the newest first."""

    budget: int = 400
    impatient: bool = True

    def next(self, groups: Sequence[Group], pending: Sequence[Pending], turn: int) -> Turn:
        if groups:
            return Turn(group=groups[turn % len(groups)], budget=self.budget)
        return Turn(pending=pending[-1])

    def gives_up(self) -> bool:
        return self.impatient


@dataclass(kw_only=True)
class Random:
    """Anything possible, with a seed."""

    seed: int
    budget: int = 200
    impatient: bool = True  # half of the waits give up
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def gives_up(self) -> bool:
        return self.impatient and self._random.random() < 0.5

    def next(self, groups: Sequence[Group], pending: Sequence[Pending], turn: int) -> Turn:
        chosen = self._random.randrange(len(groups) + len(pending))
        if chosen < len(groups):
            group, budget = groups[chosen], self._random.randint(1, self.budget)
            # Half the time, only some of the warps go on.
            every = (1 << group.warps) - 1
            warps = self._random.randint(1, every) if self._random.random() < 0.5 else None
            return Turn(group=group, budget=budget, warps=warps)
        return Turn(pending=pending[chosen - len(groups)])
