"""Why this config: what the cost model, the heuristics and the passes say of one launch, gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..config import Config
from ..cost import Cost, cost, floors, flops, operand_bytes, terms
from ..cost_launch import gemms, launch
from ..cost_link import Payoff, pays
from ..cost_terms import Terms
from ..errors import ArgumentError, IllegalConfig
from ..heuristics import ALL_BUILT, ANY, PANELS, PROBE, candidates, judge, verdicts, wave_rows
from ..heuristics.database import Row
from ..heuristics.tuned import find
from ..heuristics.verdict import Choice, Verdict
from ..ir.nodes import Kernel
from ..pipeline import lower
from ..problem import Problem, Shape
from ..target import H200, Target


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What no kernel beats. tensor, hbm: seconds at the peaks; bytes: by operand, of all groups."""

    flops: int
    bytes: dict[str, float]
    tensor: float
    hbm: float


@dataclass(frozen=True, kw_only=True)
class Panels:
    """Rows of A and of B that a full wave reads under one raster, and their bytes over all of K."""

    raster: str
    panel: int
    a_rows: int
    b_rows: int
    bytes: int


Differences = tuple[tuple[str, float], ...]


@dataclass(frozen=True, kw_only=True)
class RunnerUp:
    """A legal config that was not taken. differences: seconds by which each term of its price exceeds the
    taken one's, the greatest first."""

    choice: Choice
    differences: Differences


@dataclass(frozen=True, kw_only=True)
class WhyNot:
    """The config asked about. candidate: whether the heuristics weigh one of its tile. differences: as a
    runner-up's."""

    verdict: Verdict
    candidate: bool
    differences: Differences


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A config that is not legal, that the build refused (unbuilt: why), or that hides no latency (neither), and the
    candidates that have its tile or one no smaller. seconds: the cheapest one's modelled time."""

    config: Config
    error: IllegalConfig | None
    unbuilt: str
    candidates: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One launch of `groups` GEMMs, or of so many ranks, of `ctas` CTAs. payoff: of a collective. source: where the config comes from. measured: the database's row, if
    the config is its. kernel: lowered. judged: how many candidates are no dearer than the last runner-up.
    why_not: the config asked about. unbuilt: configs that would have been chosen, but the build refused them, and
    why."""

    problem: Problem
    shape: Shape
    groups: int
    target: Target
    ctas: int
    config: Config
    source: str
    measured: Row | None
    cost: Cost
    terms: Terms
    kernel: Kernel
    floor: Floor
    panels: tuple[Panels, ...]
    judged: int
    runners_up: tuple[RunnerUp, ...]
    refusals: tuple[Refusal, ...]
    why_not: WhyNot | None
    unbuilt: Mapping[Config, str]
    payoff: Payoff | None

    @property
    def ranks(self) -> int:
        return self.groups if self.problem.together else 1


def explain(
    problem: Problem,
    config: Config,
    shape: Shape,
    source: str,
    *,
    target: Target = H200,
    groups: int = 1,
    ctas: int | None = None,
    top: int = 5,
    why_not: Mapping[str, Any] | None = None,
    unbuilt: Mapping[Config, str] = ALL_BUILT,
    split_k: int = ANY,
) -> Explanation:
    """Why `config`, which comes from `source`, and not another of the `top` cheapest.

    shape: M, N, K, of one group in the mean, or of one rank. groups: ranks of a collective. ctas: of the launch; None: as many as it has tiles, or run at once. why_not: fields of `config` to change, as in `Config.to_json`;
    stages are the most that fit if not among them. unbuilt: configs that the build refused, and why. split_k: of all that
    are weighed, as of `heuristics.choose`. Raises ArgumentError for a side below 1 or a field,
    UnsupportedProblem, and IllegalConfig if `config` is not legal.
    """
    _check(top, why_not)
    kernel = lower(problem, config, target)
    found = verdicts(problem, shape, target, top + 1, groups, unbuilt, split_k=split_k)
    taken = terms(problem, config, shape, target, groups)
    row = find(problem, shape, target.device_name, groups, target, unbuilt)

    def beside(c: Config) -> Differences:
        return differences(terms(problem, c, shape, target, groups), taken)

    others = [v.choice for v in found if v.choice and v.choice.config != config]
    asked = None
    if why_not is not None:
        c = Config.from_json({**config.to_json(), **why_not})
        verdict = judged(problem, c, shape, target, groups, staged="stages" in why_not)
        weighed = map(_tile, candidates(problem, shape, target, groups, shape[0], split_k))
        asked = WhyNot(verdict=verdict, candidate=_tile(c) in weighed, differences=beside(c))
    return Explanation(
        problem=problem,
        shape=shape,
        groups=groups,
        target=target,
        ctas=taken.full.busy if ctas is None else ctas,
        config=config,
        source=source,
        measured=row if row and row.best.config == config else None,
        cost=cost(problem, config, shape, target, groups),
        terms=taken,
        kernel=kernel,
        floor=floor(problem, shape, target, groups),
        panels=panels(problem, config, launch(problem, shape, target, groups).deep, target),
        judged=len(found),
        runners_up=tuple(RunnerUp(choice=o, differences=beside(o.config)) for o in others[:top]),
        refusals=refusals(found),
        why_not=asked,
        unbuilt=unbuilt,
        payoff=pays(problem, shape, groups, target) if problem.together else None,
    )


def _check(top: object, why_not: object) -> None:
    if type(top) is not int or top < 1:
        raise ArgumentError("top", top, "must be an integer of at least 1")
    if not (why_not is None or isinstance(why_not, Mapping)):
        raise ArgumentError("why_not", why_not, "must be a mapping of fields of Config to values")


def _tile(c: Config) -> tuple[object, ...]:
    shared = (c.multicast, c.split_k, c.ping_pong, c.slice_k)
    return (c.swap_ab, c.block_m, c.block_n, c.consumers, c.parts, c.block_k_bytes, *shared)


def floor(problem: Problem, shape: Shape, target: Target, groups: int) -> Floor:
    """The launch's floor times."""
    tensor, hbm = floors(problem, shape, target, groups)
    return Floor(
        flops=flops(shape, gemms(problem, groups)),
        bytes=operand_bytes(problem, shape, groups),
        tensor=tensor,
        hbm=hbm,
    )


def panels(problem: Problem, config: Config, shape: Shape, target: Target) -> tuple[Panels, ...]:
    """The config's raster and panel, then the others that the heuristics weigh. shape: with the K that a tile sums."""
    own = (config.raster, config.panel)
    others = [(raster, panel) for raster in "mn" for panel in PANELS]
    found = []
    for raster, panel in dict.fromkeys([own, *others]):
        a, b = wave_rows(config, config.multicast, raster, panel, shape, target)
        size = shape[2] * (a * problem.a.bytes + b * problem.b.bytes)
        found.append(Panels(raster=raster, panel=panel, a_rows=a, b_rows=b, bytes=size))
    return tuple(found)


def differences(other: Terms, taken: Terms) -> Differences:
    """Seconds by which each term of `other` exceeds that of `taken`, the greatest difference first."""
    base = taken.added
    found = ((name, seconds - base[name]) for name, seconds in other.added.items())
    return tuple(sorted(found, key=lambda x: -abs(x[1])))


def refusals(found: list[Verdict]) -> tuple[Refusal, ...]:
    """By the config that was lowered, in order of the cheapest candidate that its refusal removed."""
    removed: dict[Config, list[Verdict]] = {}
    for v in found:
        if not v.choice:
            removed.setdefault(v.by, []).append(v)
    return tuple(
        Refusal(
            config=by,
            error=group[0].refused,
            unbuilt=group[0].unbuilt,
            candidates=len(group),
            seconds=group[0].cost.seconds,
        )
        for by, group in removed.items()
    )


def judged(
    problem: Problem, c: Config, shape: Shape, target: Target, groups: int, *, staged: bool
) -> Verdict:
    """The verdict on `c`, with its own stages if they are `staged`, else with the most that fit."""
    price = cost(problem, c, shape, target, groups)
    if not staged:
        deep = launch(problem, shape, target, groups).deep
        return judge(problem, replace(c, stages=PROBE), price, deep, target)
    try:
        lower(problem, c, target)
    except IllegalConfig as error:
        return Verdict(config=c, cost=price, refused=error, by=c)
    return Verdict(config=c, cost=price, choice=Choice(config=c, cost=price, why="asked for"), by=c)
