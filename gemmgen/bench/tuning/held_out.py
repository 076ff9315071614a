"""Shapes that no database has, drawn at random: what a choice is held against off the shapes it was fitted to."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from ...epilogues import EPILOGUES
from ...errors import ArgumentError
from ...families import FAMILIES
from ...heuristics import tuned
from ...ir.dtypes import BF16, F32
from ...ir.groupings import GROUPINGS
from ...problem import Problem
from ...recipes import recipe
from ...target import H200
from ..shapes import Shape
from ..work import launched
from .jobs import Job, job

ROWS = (1, 8192)  # M: as likely from 1 to 2 as from 4096 to 8192, and so are all sides
SIDES = (256, 16384)  # N and K
GROUPS = (2, 64)
ROWS_OF_ALL = 1 << 16  # rows of all groups
COLUMNS_STEP, DEPTH_STEP, ROWS_STEP = 64, 128, 16  # of N; of K; of M where A is contiguous along it
MOST_PRODUCTS = 1 << 40  # of a launch: a few milliseconds
MOST_BYTES = 1 << 31  # of A and B each
DRAWS = 10_000  # until it is said that there is nothing left to draw

Taken = Callable[[Job], bool]


def problems(
    families: Sequence[str] | None = None, groupings: Sequence[str] | None = None
) -> tuple[Problem, ...]:
    """Of each family with each grouping, its first operands, as gemmgen's functions launch it: weight gradients add to
    an FP32 D, and they and plain sums alone have groups that split K; plain sums alone have groups that are summed. None: all. Raises ArgumentError."""
    for name, given, known in (
        ("--families", families, FAMILIES),
        ("--groupings", groupings, GROUPINGS),
    ):
        for item in given or ():
            if item not in known:
                raise ArgumentError(name, item, f"must be one of {', '.join(known)}")
    asked = ((f, g) for f in families or FAMILIES for g in groupings or GROUPINGS)
    found = tuple(_problem(f, g) for f, g in asked if _launches(f, g))
    if not found:
        allowed = "must be of the families: weight gradients have no groups of rows, scaled sums none of K, and packed weights are not drawn"
        raise ArgumentError("--groupings", ", ".join(groupings or ()), allowed)
    return found


def _launches(family: str, grouping: str) -> bool:
    """Whether gemmgen has a function for it, of numbers that a sweep draws: packed weights it does not."""
    r, split = recipe(family), bool(GROUPINGS[grouping].depths)
    if r.coded or (GROUPINGS[grouping].summed and r.promotes):
        return False
    if r.scales_columns:
        return split or grouping == "none"
    return not (split and r.promotes)


def _problem(family: str, grouping: str) -> Problem:
    r = recipe(family)
    a, b = r.operands[0]
    summed = r.scales_columns or bool(GROUPINGS[grouping].depths)
    p = launched(
        Problem(
            family=family,
            a=a,
            b=b,
            d=F32 if summed else BF16,
            grouping=grouping,
            accumulate=r.scales_columns,
        )
    )
    alike = (replace(p, epilogue=e) for e in EPILOGUES.values())
    return next((x for x in alike if tuned.profile(x) == tuned.profile(p)), p)  # one with a name


def jobs(of: Sequence[Problem], count: int, seed: int, taken: Taken) -> tuple[Job, ...]:
    """`count` jobs, the problems in turn, no two alike and none that is `taken`. A problem's shapes depend on the seed and on it
    alone. Raises ArgumentError if there are not as many."""
    drawn = {p: _distinct(p, seed, taken) for p in of}
    found = [next(drawn[of[i % len(of)]], None) for i in range(count)]
    if None in found:
        raise ArgumentError("--count", count, "is more than the shapes that no database has")
    return tuple(j for j in found if j)


def _distinct(p: Problem, seed: int, taken: Taken) -> Iterator[Job]:
    rng = Random(f"{seed} {json.dumps(p.to_json())}")
    seen: set[Job] = set()
    for _ in range(DRAWS):
        shape = draw(p, rng)
        if not _fits(p, shape):
            continue
        found = job(p, shape)
        if found not in seen and not taken(found):
            seen.add(found)
            yield found


def draw(p: Problem, rng: Random) -> Shape:
    """(M, N, K), or with groups (G, M, N, K), M of one group in the mean, or K where groups split it; each side uniform
    in its logarithm."""
    n = _side(rng, *SIDES, COLUMNS_STEP)
    step = ROWS_STEP if p.mn_major[0] else 1
    if p.grouping == "none":
        rows = (
            SIDES if recipe(p.family).scales_columns else ROWS
        )  # a weight's gradient has its sides
        return _side(rng, *rows, step), n, _side(rng, *SIDES, DEPTH_STEP)
    groups = _side(rng, *GROUPS, 1)
    if GROUPINGS[p.grouping].depths:
        return groups, _side(rng, *SIDES, COLUMNS_STEP), n, _side(rng, *SIDES, DEPTH_STEP)
    m = _side(rng, ROWS[0], min(ROWS[1], ROWS_OF_ALL // groups), step)
    return groups, m, n, _side(rng, *SIDES, DEPTH_STEP)


def _side(rng: Random, least: int, most: int, step: int) -> int:
    """A multiple of `step`, at least one of it."""
    drawn = math.exp(rng.uniform(math.log(least), math.log(most)))
    return max(1, round(drawn / step)) * step


def _fits(p: Problem, shape: Shape) -> bool:
    groups, (m, n, k) = shape[0] if len(shape) > 3 else 1, shape[-3:]
    sides = max(m, n) * k * groups * p.a.bytes
    return groups * m * n * k <= MOST_PRODUCTS and sides <= MOST_BYTES


def in_database(j: Job, device: str) -> bool:
    """Whether a database has a row of `j` at its very shape, measured on that device or on an H200."""
    rows = (tuned.find(j.problem, j.shape, name, j.groups) for name in {device, H200.device_name})
    return any(row is not None and row.shape == j.shape for row in rows)
