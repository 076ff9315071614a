"""One case: launch it into poisoned images, again and again, and count those that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .cases import Case, smaller
from .images import POISONS
from .trial import Trial, build

TRIES = 60  # of smaller cases
SHRUNK = 2  # cases of one chunk
REPEATS = 4  # of a case that was wrong, over each poison: a fault may not show every time


@dataclass
class Flags:
    """Wrong launches, on the device until somebody asks. case: what can be done again, if anything."""

    counts: list[tuple[str, Case | None, Any]] = field(default_factory=list)

    def add(self, name: object, case: Case | None, count: Any) -> None:
        self.counts.append((str(name), case, count))

    def wrong(self) -> Iterator[tuple[str, Case | None, int]]:
        """Waits for the device, once."""
        if self.counts:
            found = torch.stack([count for *_, count in self.counts]).tolist()
            for (name, case, _), count in zip(self.counts, found, strict=True):
                if count:
                    yield name, case, count


def exact(machine: Any, case: Case, flags: Flags, rounds: int) -> int:
    """Launch `case` into every image `rounds` times, poisoned in turn; returns how many launches."""
    trial = build(case, machine.device)
    before = [parent.clone() for parent in trial.held]
    launches, wrong = filled(machine, trial, rounds)
    flags.add(case, case, wrong + changed(trial, before))
    return launches


def filled(machine: Any, trial: Trial, rounds: int) -> tuple[int, Any]:
    """The launches, and how many images were wrong: int64 on the device."""
    function = machine.function(trial.kind.function)
    views = trial.out.views
    wrong = torch.zeros((), dtype=torch.int64, device=machine.device)
    for i in range(rounds):
        which = i % len(POISONS)
        trial.out.poison(which)
        for view in views:
            trial.call(function, view)
        wrong += trial.out.wrong(which)
    return rounds * len(views) * trial.launches, wrong


def changed(trial: Trial, before: list[Any]) -> Any:
    """int64: how many parents of what the kernel only reads are no longer as they were."""
    pairs = zip(trial.held, before, strict=True)
    return torch.stack([(x != y).any() for x, y in pairs]).sum()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Of one case done again. zeros: images that differ in the signs of zeros only."""

    wrong: int
    zeros: int
    what: str


def verdict(machine: Any, case: Case) -> Verdict:
    trial = build(case, machine.device)
    function = machine.function(trial.kind.function)
    wrong, zeros, what = 0, 0, ""
    for i in range(REPEATS * len(POISONS)):
        before = [parent.clone() for parent in trial.held]
        which = i % len(POISONS)
        trial.out.poison(which)
        for view in trial.out.views:
            trial.call(function, view)
        differ = int(trial.out.wrong(which))
        values = trial.out.values_differ(which) if differ else []
        wrong, zeros = wrong + len(values), zeros + differ - len(values)
        what = what or (trial.out.first_difference(which, values[0]) if values else "")
        if int(changed(trial, before)):
            wrong, what = wrong + 1, what or "an input was written"
            trial = build(case, machine.device)
    return Verdict(wrong=wrong, zeros=zeros, what=what)


def settled(machine: Any, flags: Flags) -> tuple[int, list[str]]:
    """Wrong launches of all that `flags` gathered, and what is known of each."""
    count, failures = 0, []
    for name, case, wrong in flags.wrong():
        again = verdict(machine, case) if case else Verdict(wrong=wrong, zeros=0, what="")
        if again.zeros and not again.wrong:
            failures.append(f"{name}: zeros of another sign, not counted")
            continue
        count += wrong
        more = again.what or "not seen again" * (case is not None)
        if case and again.wrong and len(failures) < SHRUNK:
            least = shrunk(case, lambda c: verdict(machine, c).wrong > 0)
            more += f"; least: {least}"
        failures.append(f"{name}: {wrong} wrong {more}")
    return count, failures


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case that halving finds and that still fails."""
    left = TRIES
    while left > 0:
        for candidate in smaller(case):
            left -= 1
            if fails(candidate):
                case = candidate
                break
        else:
            return case
    return case
