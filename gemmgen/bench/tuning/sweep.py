"""The default choice over all M of an N and K, and where a launch takes longer than one with more rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ...config import Config
from ...errors import GemmgenError
from ...heuristics.database import brief
from ...problem import Problem
from ..noise import iqr, tied
from . import lines
from .compiling import Built, Progress
from .jobs import Job
from .session import Settings
from .trial import Sweep, Verify
from .worker import Worker

MODE = "sweep"
WITHIN = 0.05  # by which a launch may take longer than one with more rows
PER_TIMEOUT = (
    128  # launches of a round: so many take no longer than the requests that a timeout is for
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """The default choice at one M: where it comes from, and its device time in seconds, median and interquartile range."""

    m: int
    config: Config
    source: str
    median: float
    iqr: float


@dataclass(frozen=True, kw_only=True)
class Swept:
    """The points of one N and K by M, and the M whose choice did not run, and why. sms: that launches took at most. asked: the
    `digest` of the default choices before anything is built, of which the build may refuse some."""

    problem: Problem
    n: int
    k: int
    device: str
    sms: int | None
    nvrtc: tuple[int, int]
    asked: str
    points: tuple[Point, ...]
    failed: tuple[tuple[int, str], ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """What is measured once: other choices at the same N and K are another measurement."""
        return self.problem, self.n, self.k, self.device, self.sms, self.nvrtc, self.asked


def digest(choices: Mapping[int, Config]) -> str:
    """Of configs by M: equal where those are."""
    return hashlib.sha256(repr(sorted(choices.items())).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Cliff:
    """Neighbouring M, first to last, that take longer than one with more rows by over WITHIN, told apart from noise. slow: the
    worst of them; fast: the fastest with more rows than that."""

    first: int
    last: int
    slow: Point
    fast: Point

    @property
    def ratio(self) -> float:
        return self.slow.median / self.fast.median


def cliffs(points: Sequence[Point]) -> list[Cliff]:
    """Of points by M, rising."""
    found: list[Cliff] = []
    open_at = -1  # of the point that the last cliff ends with
    for i, (slow, fast) in enumerate(zip(points, _fastest_after(points), strict=True)):
        if fast is None or slow.median <= fast.median * (1 + WITHIN) or tied(slow, fast):
            continue
        one = Cliff(first=slow.m, last=slow.m, slow=slow, fast=fast)
        if found and open_at == i - 1:
            before = found.pop()
            worse = max(before, one, key=lambda c: c.ratio)
            one = replace(worse, first=before.first, last=slow.m)
        found.append(one)
        open_at = i
    return found


def _fastest_after(points: Sequence[Point]) -> list[Point | None]:
    """Of each point the fastest with more rows; None for the last."""
    found: list[Point | None] = []
    best: Point | None = None
    for point in reversed(points):
        found.append(best)
        best = point if best is None or point.median < best.median else best
    return found[::-1]


def measure(
    p: Problem,
    sides: tuple[int, int],
    asked: str,
    choices: dict[int, tuple[Config, str]],
    built: dict[Config, Built],
    worker: Worker,
    s: Settings,
    progress: Progress = lambda done, total: None,
) -> Swept:
    """Each config verified once, at the least M that it is chosen for; then all M by turns. asked: as of Swept. choices: a config
    and where it comes from, by M. progress: of verifying them. Raises GemmgenError if what was right cannot be timed."""
    n, k = sides
    why = {c: b.failed for c, b in built.items() if not b.cubin}
    cubins = {c: b.cubin for c, b in built.items() if b.cubin}
    first = {config: m for m, (config, _) in sorted(choices.items(), reverse=True)}
    worker.start()  # not at a config's expense
    for done, (config, m) in enumerate(first.items()):
        progress(done, len(first))
        if config in cubins:
            of = Job(problem=p, shape=(m, n, k))
            ask = Verify(job=of, config=config, cubin=cubins[config], sms=s.sms)
            if failed := worker.ask(ask, s.timeout).failed:
                why[config] = failed
    right = {m: choice for m, choice in sorted(choices.items()) if choice[0] not in why}
    times = _timed(Job(problem=p, shape=(max(right, default=1), n, k)), right, cubins, worker, s)
    points = (
        Point(m=m, config=config, source=source, median=median(times[m]), iqr=iqr(times[m]))
        for m, (config, source) in right.items()
    )
    return Swept(
        problem=p,
        n=n,
        k=k,
        device=s.device,
        sms=s.sms,
        nvrtc=s.nvrtc,
        asked=asked,
        points=tuple(points),
        failed=tuple((m, why[c]) for m, (c, _) in sorted(choices.items()) if c in why),
    )


def _timed(
    j: Job,
    right: dict[int, tuple[Config, str]],
    cubins: dict[Config, Path],
    worker: Worker,
    s: Settings,
) -> dict[int, tuple[float, ...]]:
    if not right:
        return {}
    kernels = tuple((m, config, cubins[config]) for m, (config, _) in right.items())
    seconds = s.timeout * (1 + len(kernels) / PER_TIMEOUT)
    answer = worker.ask(Sweep(job=j, kernels=kernels, repeats=s.repeats, sms=s.sms), seconds)
    if answer.failed:
        raise GemmgenError(f"{j}: the sweep could not be timed: {answer.failed}")
    found: dict[int, tuple[float, ...]] = answer.value
    return found


# ---- as text --------------------------------------------------------------------------------


def to_text(of: Iterable[Swept]) -> str:
    return lines.to_text(MODE, map(to_json, of))


def to_json(x: Swept) -> dict[str, Any]:
    return {
        "problem": x.problem.to_json(),
        "n": x.n,
        "k": x.k,
        "device": x.device,
        "sms": x.sms,
        "nvrtc": ".".join(map(str, x.nvrtc)),
        "asked": x.asked,
        "points": [
            {
                "m": point.m,
                "config": brief(point.config),
                "source": point.source,
                "seconds": point.median,
                "iqr": point.iqr,
            }
            for point in x.points
        ],
        "failed": [[m, why] for m, why in x.failed],
        "cliffs": [
            {"first": c.first, "last": c.last, "m": c.slow.m, "than": c.fast.m, "ratio": c.ratio}
            for c in cliffs(x.points)
        ],
    }


def load(path: Path) -> list[Swept]:
    """The lines of a file that `to_text` made. Raises ArgumentError as `lines.load`."""
    return lines.load(MODE, path, _from_json)


def _from_json(data: Any) -> Swept:
    major, minor = map(int, data["nvrtc"].split("."))
    return Swept(
        problem=Problem.from_json(data["problem"]),
        n=int(data["n"]),
        k=int(data["k"]),
        device=str(data["device"]),
        sms=None if data["sms"] is None else int(data["sms"]),
        nvrtc=(major, minor),
        asked=str(data["asked"]),
        points=tuple(map(_point, data["points"])),
        failed=tuple((int(m), str(why)) for m, why in data["failed"]),
    )


def _point(data: Any) -> Point:
    if not (data["seconds"] > 0 and data["iqr"] >= 0):
        raise ValueError("times must be positive")
    return Point(
        m=int(data["m"]),
        config=Config.from_json(data["config"]),
        source=str(data["source"]),
        median=float(data["seconds"]),
        iqr=float(data["iqr"]),
    )
