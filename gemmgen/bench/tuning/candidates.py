"""Which configs are worth measuring: those the cost model likes, and theirs with one field changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice, zip_longest

from ...config import FIELDS, Config
from ...cost import cost
from ...errors import IllegalConfig
from ...heuristics import Choice, rank
from ...levers import LEVERS
from ...pipeline import lower
from ...target import H200, Target
from .jobs import Candidate, Job

FACTOR = 1.3  # of the cheapest; the model has been off by less
LIMIT = 32
TILES = 0.6  # of the candidates: tiles as the cost model ranks them; the others change a field of the first
CHANGED = 3  # tiles: the first ones

AT_FIRST = 2  # of what a lever has to offer; the rest once all have been tried
DEEPER = 30.0  # how much a stage more matters, as `Lever.matters`


def candidates(
    j: Job, limit: int = LIMIT, factor: float = FACTOR, target: Target = H200
) -> list[Candidate]:
    """At most `limit` legal configs that the cost model gives at most `factor` times the cheapest's time. The
    first is the default choice; every config is there once.

    Raises as `heuristics.choose`.
    """
    ranked = rank(j.problem, j.shape, target, limit=limit, groups=j.groups)
    most = factor * ranked[0].cost.seconds if ranked else 0.0
    tiles = [c for c in ranked if c.cost.seconds <= most]
    first = max(1, round(limit * TILES))
    bases = {_tile(c.config): c for c in reversed(tiles)}
    changed = _in_turn([neighbours(j, c, target) for c in [*bases.values()][: -CHANGED - 1 : -1]])
    whole = chain(map(_of, tiles[:first]), changed, map(_of, tiles[first:]))
    return _distinct(whole, most, limit)


def _tile(c: Config) -> tuple[object, ...]:
    return tuple(getattr(c, x.name) for x in LEVERS if x.tile)


def neighbours(j: Job, choice: Choice, target: Target = H200) -> Iterator[Candidate]:
    """Legal configs that differ from the choice's in one thing, in the order in which they tend to matter."""
    for config in _changes(j, choice, target):
        if not _legal(j, config, target):
            continue
        seconds = cost(j.problem, config, j.shape, target, j.groups).seconds
        yield Candidate(config=config, predicted=seconds)


def _changes(j: Job, choice: Choice, target: Target) -> Iterator[Config]:
    c = choice.config
    ordered = choice.cost.tiles > target.sms  # the order of tiles that all run at once says little
    levers = sorted((x for x in LEVERS if ordered or not x.ordered), key=lambda x: x.matters)
    before = [c.having(**x) for v in levers for x in v.others(c) if v.matters < DEEPER]
    after = [[c.having(**x) for x in v.others(c)] for v in levers if v.matters >= DEEPER]
    yield from before
    yield from _deeper(j, c, target)
    yield from (x for changed in after for x in changed[:AT_FIRST])
    yield from (x for changed in after for x in changed[AT_FIRST:])


def _deeper(j: Job, c: Config, target: Target) -> Iterator[Config]:
    """One stage more than fits, in the first way to make room for it."""
    stages = c.stages + 1
    if not FIELDS["stages"].holds(stages) or _legal(j, replace(c, stages=stages), target):
        return
    deeper = (c.having(stages=stages, **x) for lever in LEVERS for x in lever.deepens(c))
    yield from islice((x for x in deeper if _legal(j, x, target)), 1)


def _legal(j: Job, c: Config, target: Target) -> bool:
    try:
        lower(j.problem, c, target)
    except IllegalConfig:
        return False
    return True


def _of(choice: Choice) -> Candidate:
    return Candidate(config=choice.config, predicted=choice.cost.seconds)


def _in_turn(many: list[Iterator[Candidate]]) -> Iterator[Candidate]:
    for row in zip_longest(*many):
        yield from (c for c in row if c)


def _distinct(found: Iterable[Candidate], most: float, limit: int) -> list[Candidate]:
    kept: dict[Config, Candidate] = {}
    for c in found:
        if len(kept) == limit:
            break
        if c.predicted <= most:
            kept.setdefault(c.config, c)
    return [*kept.values()]
