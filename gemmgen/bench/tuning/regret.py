"""How much time the default choice loses to the best config that the tuner tries, at shapes that no database has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from ...config import Config
from ...cost import cost
from ...heuristics.database import brief
from ...heuristics.tuned import Pick
from ...problem import Problem, Shape
from ...target import Target
from ..noise import iqr, tied
from . import lines
from .jobs import Candidate, Job
from .session import NOISY, Found, Settings

MODE = "regret"


@dataclass(frozen=True, kw_only=True)
class Clocked:
    """A config's device time in seconds: the median of the rounds and their interquartile range."""

    config: Config
    predicted: float
    median: float
    iqr: float

    @property
    def spread(self) -> float:
        return self.iqr / self.median


@dataclass(frozen=True, kw_only=True)
class Regret:
    """What one held-out shape came to. sms: that launches took at most, None for all. asked: the default choice before anything is
    built; choice: that which is taken, another where the build refuses it; source: where that comes from. default, best: of the
    same rounds; None if the default, or none, ran. tried: candidates that were timed. failed: that did not compile,
    verify or finish."""

    job: Job
    device: str
    sms: int | None
    nvrtc: tuple[int, int]
    source: str
    asked: Config
    choice: Config
    default: Clocked | None
    best: Clocked | None
    tried: int
    failed: int

    @property
    def key(self) -> tuple[object, ...]:
        """What is measured once: another choice at the same shape is another measurement."""
        return self.job, self.device, self.sms, self.nvrtc, self.asked

    @property
    def ratio(self) -> float | None:
        """The default's time over the best one's, at least 1."""
        return self.default.median / self.best.median if self.default and self.best else None

    @property
    def told(self) -> bool:
        """Whether the best is another config, and the two can be told apart."""
        return bool(self.default and self.best and not tied(self.default, self.best))

    @property
    def noisy(self) -> bool:
        """Whether one of the two varied by more than NOISY of itself, measured again and again."""
        return any(x.spread > NOISY for x in (self.default, self.best) if x)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Of the ratios of some shapes, each None if there is none. failed: shapes whose default choice did not run. told: of
    those whose best can be told from the default. noisy: shapes that stayed so."""

    shapes: int
    mean: float | None
    median: float | None
    worst: float | None
    told: int
    noisy: int
    failed: int


def summary(of: Sequence[Regret]) -> Summary:
    """The arithmetic mean, and so on."""
    ratios = [r.ratio for r in of if r.ratio is not None]
    return Summary(
        shapes=len(of),
        mean=mean(ratios) if ratios else None,
        median=median(ratios) if ratios else None,
        worst=max(ratios, default=None),
        told=sum(r.told for r in of),
        noisy=sum(r.noisy for r in of),
        failed=len(of) - len(ratios),
    )


def by_problem(of: Iterable[Regret]) -> dict[Problem, list[Regret]]:
    found: dict[Problem, list[Regret]] = {}
    for r in of:
        found.setdefault(r.job.problem, []).append(r)
    return found


def worst_first(of: Iterable[Regret]) -> list[Regret]:
    """Those without a ratio first: a choice that does not run is the worst."""
    return sorted(of, key=lambda r: (r.ratio is not None, -(r.ratio or 0.0), str(r.job)))


def beginning_with(
    choice: Config, candidates: Sequence[Candidate], j: Job, target: Target
) -> list[Candidate]:
    """The candidates, no more of them, of which `choice` is the first."""
    others = [c for c in candidates if c.config != choice]
    seconds = cost(j.problem, choice, j.shape, target, j.groups).seconds
    first = Candidate(config=choice, predicted=seconds)
    return [first, *others[: max(0, len(candidates) - 1)]]


def of_found(j: Job, asked: Config, choice: Pick, found: Found, s: Settings) -> Regret:
    """What the session's last rounds say: the finalists' medians, whichever is the least. `asked` and `choice` as of Regret."""
    clocked = {c: _clocked(found, c, times) for c, times in found.final.items()}
    return Regret(
        job=j,
        device=s.device,
        sms=s.sms,
        nvrtc=s.nvrtc,
        source=choice.source(j.shape),
        asked=asked,
        choice=choice.config,
        default=clocked.get(choice.config),
        best=min(
            clocked.values(), key=lambda c: (c.median, c.config != choice.config), default=None
        ),
        tried=sum(o.seconds is not None for o in found.outcomes),
        failed=sum(bool(o.failed) and o.failed != "no time left" for o in found.outcomes),
    )


def _clocked(found: Found, config: Config, times: Sequence[float]) -> Clocked:
    predicted = next(o.candidate.predicted for o in found.outcomes if o.candidate.config == config)
    return Clocked(config=config, predicted=predicted, median=median(times), iqr=iqr(times))


# ---- as text --------------------------------------------------------------------------------


def to_text(of: Iterable[Regret]) -> str:
    return lines.to_text(MODE, map(to_json, of))


def to_json(r: Regret) -> dict[str, Any]:
    m, n, k = r.job.shape
    return {
        "problem": r.job.problem.to_json(),
        "groups": r.job.groups,
        "m": m,
        "n": n,
        "k": k,
        "device": r.device,
        "sms": r.sms,
        "nvrtc": ".".join(map(str, r.nvrtc)),
        "source": r.source,
        "asked": brief(r.asked),
        "choice": brief(r.choice),
        "ratio": r.ratio,
        "told": r.told,
        "noisy": r.noisy,
        "default": _as_json(r.default),
        "best": _as_json(r.best),
        "tried": r.tried,
        "failed": r.failed,
    }


def _as_json(c: Clocked | None) -> dict[str, Any] | None:
    if c is None:
        return None
    times = {"predicted": c.predicted, "seconds": c.median, "iqr": c.iqr}
    return {"config": brief(c.config), **times}


def load(path: Path) -> list[Regret]:
    """The lines of a file that `to_text` made. Raises ArgumentError as `lines.load`."""
    return lines.load(MODE, path, _from_json)


def _from_json(data: Any) -> Regret:
    shape: Shape = (int(data["m"]), int(data["n"]), int(data["k"]))
    major, minor = map(int, data["nvrtc"].split("."))
    return Regret(
        job=Job(
            problem=Problem.from_json(data["problem"]), shape=shape, groups=int(data["groups"])
        ),
        device=str(data["device"]),
        sms=None if data["sms"] is None else int(data["sms"]),
        nvrtc=(major, minor),
        source=str(data["source"]),
        asked=Config.from_json(data["asked"]),
        choice=Config.from_json(data["choice"]),
        default=_of_json(data["default"]),
        best=_of_json(data["best"]),
        tried=int(data["tried"]),
        failed=int(data["failed"]),
    )


def _of_json(data: Any) -> Clocked | None:
    if data is None:
        return None
    times = {name: float(data[name]) for name in ("predicted", "seconds", "iqr")}
    if not (times["seconds"] > 0 and times["iqr"] >= 0 and times["predicted"] > 0):
        raise ValueError(f"times {times} must be positive")
    return Clocked(
        config=Config.from_json(data["config"]),
        predicted=times["predicted"],
        median=times["seconds"],
        iqr=times["iqr"],
    )
