"""Tuning one job: verify each candidate, time all by turns, time the finalists again, name the fastest.

The GPU is behind a `Worker`, so that a candidate that hangs or ends the process costs seconds and a line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ...config import Config
from ...heuristics.database import Row, Timed
from ..clocks import Window
from ..noise import spread
from .compiling import Built
from .jobs import Candidate, Job
from .trial import Time, Timing, Verify
from .worker import Worker

SCREENED = 5  # rounds in which every candidate is timed
REPEATS = 21  # rounds for the finalists
FINALISTS = 6
TIE = 0.02  # of the fastest's time: within it the default choice is kept, as order changes with the heat
VERIFYING = 0.5  # of a job's budget
NOISY = 0.05  # interquartile range over median: of more than that another run may think otherwise

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """budget: seconds on the GPU per job, after which no more candidates are verified. timeout: seconds after
    which a request's process is killed. again: how often the finalists are timed again while the default or the fastest
    is NOISY. sms: that a launch takes at most, None for all."""

    device: str
    nvrtc: tuple[int, int]
    budget: float = 60.0
    timeout: float = 60.0
    repeats: int = REPEATS
    reference: bool = True
    again: int = 0
    sms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one candidate: the median of its screening, seconds, or why there is none."""

    candidate: Candidate
    seconds: float | None = None
    failed: str = ""


@dataclass(kw_only=True)
class Found:
    """What came of one job. row: None if no candidate ran; outcomes: in the order of the candidates; final: the finalists'
    seconds, round by round; window: of monotonic time, in which they were timed."""

    row: Row | None
    outcomes: list[Outcome]
    notes: list[str] = field(default_factory=list)
    final: dict[Config, tuple[float, ...]] = field(default_factory=dict)
    window: Window | None = None


def tune(
    j: Job,
    candidates: list[Candidate],
    built: dict[Config, Built],
    worker: Worker,
    s: Settings,
    progress: Progress = lambda done, total: None,
) -> Found:
    """The fastest of `candidates`, of which the first is the default choice. progress: of verifying them.

    Raises RuntimeUnavailable or GemmgenError if the worker cannot start.
    """
    failed: dict[Config, str] = {c: b.failed for c, b in built.items() if not b.cubin}
    cubins = {c: b.cubin for c, b in built.items() if b.cubin}
    compiled = [c.config for c in candidates if c.config in cubins]
    right = _verified(j, compiled, cubins, worker, s, failed, progress)
    screened = _timed(j, right, cubins, SCREENED, worker, s, failed)
    notes: list[str] = []
    seconds = {c: median(times) for c, times in screened.seconds.items()}
    found = Found(row=None, outcomes=_outcomes(candidates, seconds, failed), notes=notes)
    if not seconds:
        return found
    default = candidates[0].config
    finalists = sorted(seconds, key=seconds.__getitem__)[:FINALISTS]
    finalists += [default] * (default in seconds and default not in finalists)
    began = time.monotonic()
    final = _timed(j, finalists, cubins, s.repeats, worker, s, failed, reference=s.reference)
    for _ in range(s.again):
        if _noise(final, default) <= NOISY:
            break
        other = _timed(j, finalists, cubins, s.repeats, worker, s, failed, reference=s.reference)
        final = min(final, other, key=lambda t: _noise(t, default))
    found.window = began, time.monotonic()
    if not final.seconds:
        notes.append("the finalists could not be timed again: the screening decides")
        final = Timing(seconds={c: screened.seconds[c] for c in finalists})
    if final.skipped:
        notes.append(f"no reference: {final.skipped}")
    found.row = row(j, candidates, seconds, final, len(failed), s)
    found.final = final.seconds
    return found


def _noise(t: Timing, default: Config) -> float:
    """The larger spread of the default's times and the fastest's; infinite if none ran."""
    fastest = sorted(t.seconds, key=lambda c: median(t.seconds[c]))[:1]
    of = {default, *fastest} & {*t.seconds}
    return max((spread(t.seconds[c]) for c in of), default=math.inf)


def _verified(
    j: Job,
    configs: list[Config],
    cubins: dict[Config, Path],
    worker: Worker,
    s: Settings,
    failed: dict[Config, str],
    progress: Progress,
) -> list[Config]:
    """Those whose result is right, in order; as many as half of the budget allows, but the first in any case."""
    worker.start()  # not at a candidate's expense
    deadline = time.monotonic() + s.budget * VERIFYING
    right: list[Config] = []
    for done, config in enumerate(configs):
        progress(done, len(configs))
        if right and time.monotonic() > deadline:
            break
        answer = worker.ask(
            Verify(job=j, config=config, cubin=cubins[config], sms=s.sms), s.timeout
        )
        if answer.failed:
            failed[config] = answer.failed
        else:
            right.append(config)
    return right


def _timed(
    j: Job,
    configs: list[Config],
    cubins: dict[Config, Path],
    repeats: int,
    worker: Worker,
    s: Settings,
    failed: dict[Config, str],
    *,
    reference: bool = False,
) -> Timing:
    """All by turns; if that fails, each alone, and those that fail again have failed."""

    def ask(some: list[Config], wanted: bool) -> tuple[Timing, str]:
        kernels = tuple((c, cubins[c]) for c in some)
        request = Time(job=j, kernels=kernels, repeats=repeats, reference=wanted, sms=s.sms)
        answer = worker.ask(request, s.timeout)
        return answer.value or Timing(seconds={}), answer.failed

    if not configs:
        return Timing(seconds={})
    found, why = ask(configs, reference)
    if not why:
        return found
    if reference:  # perhaps it is to blame
        found, again = ask(configs, False)
        if not again:
            return Timing(seconds=found.seconds, skipped=why)
    seconds: dict[Config, tuple[float, ...]] = {}
    for config in configs:
        found, alone = ask([config], False)
        seconds |= found.seconds
        if alone:
            failed[config] = alone
    return Timing(seconds=seconds)


def row(
    j: Job,
    candidates: list[Candidate],
    screened: dict[Config, float],
    final: Timing,
    failed: int,
    s: Settings,
) -> Row:
    """The database's row. The default choice stays where it is within TIE of the fastest."""
    predicted = {c.config: c.predicted for c in candidates}
    medians = {c: median(times) for c, times in final.seconds.items()}
    best = min(medians, key=medians.__getitem__)
    default = candidates[0].config
    if default in medians and medians[default] <= medians[best] * (1 + TIE):
        best = default
    theirs = final.reference
    return Row(
        problem=j.problem,
        groups=j.groups,
        shape=j.shape,
        device=s.device,
        nvrtc=s.nvrtc,
        best=Timed(config=best, seconds=medians[best], predicted=predicted[best]),
        spread=spread(final.seconds[best]),
        default=Timed(config=default, seconds=medians.get(default), predicted=predicted[default]),
        reference=(theirs[0], median(theirs[1])) if theirs else None,
        tried=tuple((predicted[c], screened[c]) for c in predicted if c in screened),
        failed=failed,
    )


def _outcomes(
    candidates: list[Candidate], seconds: dict[Config, float], failed: dict[Config, str]
) -> list[Outcome]:
    return [
        Outcome(
            candidate=c,
            seconds=seconds.get(c.config),
            failed=failed.get(c.config, "" if c.config in seconds else "no time left"),
        )
        for c in candidates
    ]
