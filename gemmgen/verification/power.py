"""How small a fault a trial's data would show: measured, by planting faults into the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..errors import VerificationError
from ..ir.expr import fold
from ..ir.groupings import GROUPINGS, Layout, depths, summed_k
from ..ir.row_sums import fold_rows
from ..problem import Problem
from ..recipes import SCALE_BLOCK, recipe
from . import quantised
from .check import judge_bounds
from .engines import Array, Engine, NumpyEngine
from .groups import some
from .inputs import Operands, exact_integers, random_normal
from .ladder import ladder
from .reference import enclosure, product
from .tensor_core import Share

STEP_BYTES = 32  # of K per wgmma
ROWS = COLUMNS = 8  # of the D that faults are planted in
PLACES = 8  # in K, for each kind of fault
INPUTS = (exact_integers, random_normal, ladder)

Judge = Callable[[Array], Any]  # of float64 values [M, N]; raises VerificationError


@dataclass(frozen=True, kw_only=True)
class Power:
    """Of a fault in one element of D: how often one of a trial's inputs shows it."""

    fault: str
    found: int
    of: int


@dataclass(frozen=True, kw_only=True)
class Fault:
    """make: what a launch reads instead, given one of the places that there are in so much of K."""

    name: str
    places: Callable[[int], range]
    make: Callable[[Operands, int], Operands]


def faults(problem: Problem) -> list[Fault]:
    """What a sum over K can suffer, smallest first."""
    step = STEP_BYTES // problem.a.bytes
    sizes = {"lost product": 1, "missing wgmma step": step, "missing 128 of K": SCALE_BLOCK}
    lost = [
        Fault(name=name, places=partial(_starts, size), make=partial(_without, size))
        for name, size in sizes.items()
    ]
    sums = recipe(problem.family)
    sides: dict[str, tuple[str, ...]] = {"A": ("scale_a",)} if sums.scaled else {}
    sides |= (
        {"B": ("scale_b",), "both": ("scale_a", "scale_b")}
        if sums.scaled_by_b(problem.form)
        else {}
    )
    stale = [
        Fault(name=f"stale scale of {name}", places=_later_blocks, make=partial(_stale, fields))
        for name, fields in sides.items()
    ]
    return lost + stale


def power(
    problem: Problem,
    shape: tuple[int, int, int],
    seed: int = 0,
    layout: Layout | None = None,
    share: Share = 0,
) -> list[Power]:
    """Of each fault, in single elements of a small D and at random places of K: how many are found.

    The data are a trial's, of the same K (of the deepest group, where they split it). `share`: of K,
    summed by itself.
    """
    layout = layout or some(problem, shape)
    found = depths(problem.grouping, shape[2], layout)
    k = max(d.end - d.first for d in found)
    k = summed_k(GROUPINGS[problem.grouping].summed, k, layout.groups, 1)
    single = replace(problem, grouping="none", indexed=False, paged=False)
    sides = ROWS * fold_rows(problem.epilogue), COLUMNS * fold(problem.epilogue)
    rng, engine = np.random.default_rng(seed), NumpyEngine()
    inputs = [draw(single, *sides, k, seed) for draw in INPUTS]
    trials = [_trial(single, x, share, engine) for x in inputs]
    return [_measured(single, fault, inputs, trials, rng, engine) for fault in faults(problem)]


def line(powers: Sequence[Power]) -> str:
    """For people."""
    shown = ", ".join(f"{p.fault} {p.found} of {p.of}" for p in powers if p.of)
    return f"planted in one element of the reference, these inputs show: {shown}"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Trial:
    """One of the inputs: what a right kernel holds of it, and how that is judged."""

    right: Array
    judge: Judge

    def finds(self, wrong: Array, element: tuple[int, int]) -> bool:
        """Whether `element` shows, if it alone is as in `wrong`."""
        values = self.right.copy()
        values[element] = wrong[element]
        try:
            self.judge(values)
        except VerificationError:
            return True
        return False


def _measured(
    problem: Problem,
    fault: Fault,
    inputs: Sequence[Operands],
    trials: Sequence[_Trial],
    rng: np.random.Generator,
    engine: Engine,
) -> Power:
    places, count, of = fault.places(inputs[0].shape[2]), 0, 0
    for place in rng.choice(places, min(PLACES, len(places)), replace=False) if places else ():
        wrong = [product(problem, fault.make(x, int(place)), engine) for x in inputs]
        for element in _elements(int(place)):
            of += 1
            count += any(t.finds(w, element) for t, w in zip(trials, wrong, strict=True))
    return Power(fault=fault.name, found=count, of=of)


def _elements(place: int) -> list[tuple[int, int]]:
    """One in each row: no two share the scale of an FP8 D."""
    return [(row, (row + place) % COLUMNS) for row in range(ROWS)]


def _trial(problem: Problem, x: Operands, share: Share, engine: Engine) -> _Trial:
    """By its bounds: where a trial compares bits, it finds no less."""
    whole = enclosure(problem, x, engine, share)

    def judge(values: Array) -> None:
        if problem.quantised:
            quantised.judge_bounds(whole, quantised.quantise(values, engine), engine)
        else:
            judge_bounds(problem.d, whole, engine.round_to(values, problem.d), engine)

    return _Trial(right=whole.want, judge=judge)


def _starts(size: int, k: int) -> range:
    return range(0, k, size)


def _later_blocks(k: int) -> range:
    return range(1, -(-k // SCALE_BLOCK))


def _without(size: int, x: Operands, place: int) -> Operands:
    a = x.a.copy()
    a[:, place : place + size] = 0
    return replace(x, a=a)


def _stale(fields: Sequence[str], x: Operands, place: int) -> Operands:
    """With scales of the block before."""
    changed = {name: getattr(x, name).copy() for name in fields}
    for scales in changed.values():
        scales[:, place] = scales[:, place - 1]
    return replace(x, **changed)
