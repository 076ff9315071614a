"""What a query asks for: problem, shape, the choice, the config whose levers were moved, its kernel or what forbids it."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ...config import Config
from ...errors import ArgumentError, GemmgenError, IllegalConfig, UnsupportedProblem
from ...heuristics.tuned import Pick
from ...ir.nodes import Kernel
from ...ops import invariance
from ...ops.building import picked_for
from ...pipeline import lower
from ...problem import Problem, Shape
from ...target import H200
from ...untrusted import parse_json
from .. import given, options
from .query import Query, names

KEPT = 256  # of each kind
REFUSALS = (ArgumentError, IllegalConfig, UnsupportedProblem)  # all else is a bug


@dataclass(frozen=True, kw_only=True)
class Asked:
    """`groups` GEMMs of `shape` in one launch; of ragged ones, and of those that split K, it is the mean."""

    problem: Problem
    shape: Shape
    groups: int


@dataclass(frozen=True, kw_only=True)
class Position:
    """As far as a query leads. pick: the choice for the launch. base: what levers are moved from. config: with them moved.
    kernel: lowered. refused: why what comes next is not there."""

    query: Query
    launch: Asked | None = None
    pick: Pick | None = None
    base: Config = field(default_factory=Config)
    config: Config | None = None
    kernel: Kernel | None = None
    refused: GemmgenError | None = None


def position(q: Query) -> Position:
    """Raises nothing that a query may bring about."""
    p = Position(query=q)
    try:
        p = replace(p, launch=_launch(q))
        p = _started(p)
        config = Config.from_json({**p.base.to_json(), **q.levers})
        p = replace(p, config=config)
        return replace(p, kernel=lowered(_problem(p), config))
    except REFUSALS as e:
        return replace(p, refused=e)


def _launch(q: Query) -> Asked:
    for name, of in names().items():
        if not of.values.holds(q.value(name)):
            raise ArgumentError(name, q.value(name), f"must be {of.values.says}")
    said = {name: q.value(name) or None for name in given.PROBLEM}
    problem = options.problem(Namespace(kernel=q.value("family"), **said))
    if problem.grouping == "none" and q.value("groups") != 1:
        allowed = "is for kernels with groups: choose a grouping"
        raise ArgumentError("groups", q.value("groups"), allowed)
    m, n, k = (q.value(side) for side in "mnk")
    return Asked(problem=problem, shape=(m, n, k), groups=q.value("groups"))


def _started(p: Position) -> Position:
    """With the choice, and the config that is given in its place; the choice may be missing then."""
    assert p.launch
    if not p.query.config:
        pick = chosen(p.launch)
        return replace(p, pick=pick, base=pick.config)
    base = Config.from_json(parse_json("config", p.query.config))
    try:
        return replace(p, base=base, pick=chosen(p.launch))
    except (IllegalConfig, UnsupportedProblem):
        return replace(p, base=base)


def _problem(p: Position) -> Problem:
    assert p.launch
    return p.launch.problem


def chosen(at: Asked) -> Pick:
    """As the command line chooses, for an H200, and as the process is told now (`set_invariant`)."""
    return _picked(at, invariance.split_of(at.problem, *at.shape[1:]))


@lru_cache(maxsize=KEPT)
def _picked(at: Asked, split_k: int) -> Pick:
    return picked_for(at.problem, at.shape, at.groups, H200.device_name, split_k=split_k)


@lru_cache(maxsize=KEPT)
def lowered(p: Problem, c: Config) -> Kernel:
    """Kept for next time; raises as `lower`."""
    return lower(p, c)
