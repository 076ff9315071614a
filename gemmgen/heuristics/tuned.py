"""The config for a shape: a measured one where a database has it, else the cost model's choice.

Two databases are asked, the user's first: the file that the environment variable GEMMGEN_TUNED names, then
`gemmgen/data/h200.jsonl`, shipped with the package. GEMMGEN_TUNED=none asks neither.

A row serves a launch on the same device with the same N, K and number of groups that have rows, of the same problem, or of
one whose epilogue reads and calls the like (`profile`). Its M is the launch's, or the nearest by ratio that
is at most 4/3 of it either way and gives the row's config as many waves, to one in sixteen: within those
a launch takes about as long. On another device a row that was measured on an H200 serves where the model says that both wait
for the same (docs/adr/0042-the-gpu-that-is-there.md), unless it is of a few rows by a ring and the model prefers loads into registers, which no
tuner tried there (docs/adr/0050-direct-weights.md). Where groups split K, M is the same and K is the nearest. A config that is not
legal, or no longer, is passed over. A reduce-scatter, which has no rows, has the config of the GEMM
without it, where that is legal.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path

from .. import environment
from ..config import Config
from ..cost import cost
from ..cost_launch import launch
from ..errors import ArgumentError, GemmgenError
from ..ir.collectives import REDUCE_SCATTER
from ..ir.expr import ACC, Expr, PerElement, arguments, fold, functions
from ..ir.groupings import GROUPINGS, split_side
from ..levers import LEVERS
from ..pipeline import lower
from ..problem import Problem, Shape
from ..summation import summation
from ..target import H200, Target
from . import ALL_BUILT, ANY, choose
from .database import Row
from .lines import Lines, Start, kept_sides, lines_of, start
from .travelling import with_sums

VARIABLE = environment.TUNED
NONE = "none"
SHIPPED = Path(__file__).parent.parent / "data" / "h200.jsonl"
RANGE = (4, 3)  # the larger of a row's M (or K) and the launch's to the smaller, at most
WAVES = 16  # one more or less of so many waves is as many

Profile = tuple[Problem, tuple[str, ...], tuple[str, ...], int]
Place = tuple[str, Profile, int, int, int]  # device, problem, groups, the sides that must be equal
Index = dict[Place, tuple[Row, ...]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A config and where it comes from. row: that of the database, if it is measured; moved: on another
    device. alone: a row has it for the GEMM without its collective."""

    config: Config
    row: Row | None = None
    moved: bool = False
    alone: bool = False

    def source(self, shape: Shape) -> str:
        """ "cost model" or "tuned", and at which M (or K) if that is not the shape's."""
        if self.row is None:
            return "tuned for the GEMM alone" if self.alone else "cost model"
        grouping = self.row.problem.grouping
        here, there = (split_side(grouping, s) for s in (shape, self.row.shape))
        name = "K" if GROUPINGS[grouping].depths else "M"
        where = f" on {self.row.device}" * self.moved
        return f"tuned{where}" if here == there else f"tuned{where} at {name}={there}"


def pick(
    problem: Problem,
    shape: Shape,
    target: Target = H200,
    groups: int = 1,
    device: str = "",
    unbuilt: Mapping[Config, str] = ALL_BUILT,
    *,
    split_k: int = ANY,
    pointers: bool = True,
) -> Pick:
    """The config for `groups` GEMMs of shape (M, N, K), or so many ranks of a collective, on the device of that name (target's if none is
    given), none that the build refused; split_k: one that adds up as if so many CTAs divide K, measured or not. Where weights
    are ready it loads them ahead: that is neither measured nor priced. pointers: as of `heuristics.choose`. Raises as `heuristics.choose`."""
    if not problem.weights_ready:
        return _pick(problem, shape, target, groups, device, unbuilt, split_k, pointers)
    plain, without = (
        replace(problem, weights_ready=False),
        {plain: x for c, x in unbuilt.items() for plain in _before(problem, c)},
    )
    found = _pick(plain, shape, target, groups, device, without, split_k, pointers=False)
    return replace(found, config=_ahead(problem, found.config))


def _ahead(p: Problem, c: Config) -> Config:
    """`c`, with what the promise of `p` allows: nothing where a table on the device says whose weights come first, nor where
    ranks work together, whose launches follow each other."""
    if GROUPINGS[p.grouping].table or p.together:
        return c
    return c.having(**{x.name: x.ready for x in LEVERS if x.ready is not None})


def _before(p: Problem, c: Config) -> Iterator[Config]:
    """Those that `_ahead` makes `c` of."""
    both = {x.name: (x.default, x.ready) for x in LEVERS if x.ready is not None}
    for values in product(*both.values()):
        plain = c.having(**dict(zip(both, values, strict=True)))
        if _ahead(p, plain) == c:
            yield plain


def _pick(
    problem: Problem,
    shape: Shape,
    target: Target,
    groups: int,
    device: str,
    unbuilt: Mapping[Config, str],
    split_k: int,
    pointers: bool,
) -> Pick:
    name = device or target.device_name
    if problem.collective == REDUCE_SCATTER:
        whole = groups * shape[0], *shape[1:]
        plain = _pick(problem.alone, whole, target, 1, name, ALL_BUILT, ANY, pointers)
        found = with_sums(problem, plain.config, shape, groups, target, unbuilt)
        if found:
            return Pick(config=found, alone=plain.row is not None)
    row = find(problem, shape, name, groups, target, unbuilt)
    moved = row is None and name != H200.device_name
    if moved:
        row = find(problem, shape, H200.device_name, groups, target, unbuilt)
        row = row if row and waits_alike(problem, row.best.config, shape, groups, target) else None
    if row and row.best.config.direct and not pointers:
        row = None
    k = launch(problem, shape, target, groups).deep[2]
    if row and split_k != ANY and not adds_up(problem, row.best.config, k, split_k):
        row = None
    if row and not (moved and row.best.config.swap_ab):
        return Pick(config=row.best.config, row=row, moved=moved)
    found = choose(problem, shape, target, groups, unbuilt, split_k=split_k, pointers=pointers)
    if row and (row.best.config.direct or not found.direct):
        return Pick(config=row.best.config, row=row, moved=moved)
    return Pick(config=found)


def waits_alike(
    problem: Problem, config: Config, shape: Shape, groups: int, target: Target
) -> bool:
    """Whether `config` on `target` waits for the same resource as on an H200, in as many waves, as the model says."""
    here, there = (cost(problem, config, shape, t, groups) for t in (target, H200))
    return next(iter(here.parts)) == next(iter(there.parts)) and here.waves == there.waves


def adds_up(problem: Problem, config: Config, k: int, split_k: int) -> bool:
    """Whether `config` adds up as the configs do that are chosen for so many CTAs that divide K."""
    alike = Config(split_k=split_k)
    if problem.form:  # whose K blocks are as they are packed
        alike = replace(alike, block_k_bytes=problem.form.k_bytes)
    return summation(problem, config, k) == summation(problem, alike, k)


def lookup(
    problem: Problem, shape: Shape, device_name: str, groups: int = 1, target: Target = H200
) -> Config | None:
    """The measured config, or None. Never raises: what is wrong with a database is a warning."""
    row = find(problem, shape, device_name, groups, target)
    return row.best.config if row else None


def find(
    problem: Problem,
    shape: Shape,
    device_name: str,
    groups: int = 1,
    target: Target = H200,
    unbuilt: Collection[Config] = (),
) -> Row | None:
    """The row whose config `lookup` gives, if that is none of `unbuilt`."""
    place = _place(device_name, problem, groups, shape)
    said = start(device_name, problem, groups, shape)
    for path in databases():
        for row in _nearest(problem, shape, _rows(path, said).get(place, ())):
            if row.best.config not in unbuilt and _serves(problem, row, shape, groups, target):
                return row
    return None


def _place(device: str, problem: Problem, groups: int, shape: Shape) -> Place:
    return device, profile(problem), groups, *kept_sides(problem, shape)


def databases() -> tuple[Path, ...]:
    """The files that are asked, in order; the shipped one if it is there."""
    environment.warn_of_unknown()
    asked = os.environ.get(VARIABLE, "")
    if asked == NONE:
        return ()
    return (*(Path(p) for p in (asked,) if p), *(p for p in (SHIPPED,) if p.is_file()))


def profile(p: Problem) -> Profile:
    """`p` without its promise, its epilogue, where D's columns lie and where groups that need no gaps begin, and what that costs: the kinds of its arguments, the
    functions it calls, the columns it pairs. Names of arguments differ between users and change no kernel."""
    kinds = sorted(_kind(x) for x in arguments(p.epilogue))
    plain = replace(p, epilogue=ACC, weights_ready=False, heads=None, compact=False)
    if GROUPINGS[p.grouping].dense:
        plain = replace(plain, alignment=Problem.alignment)
    return plain, tuple(kinds), tuple(sorted(functions(p.epilogue))), fold(p.epilogue)


def _kind(x: Expr) -> str:
    dtype = f" {x.dtype}" if isinstance(x, PerElement) else ""
    return type(x).__name__ + dtype


def _nearest(problem: Problem, shape: Shape, rows: tuple[Row, ...]) -> Iterator[Row]:
    """Those in range, nearest first; of one M (or K) that of the very problem, of two as near the larger."""

    def side(s: Shape) -> int:
        return split_side(problem.grouping, s)

    def distance(row: Row) -> float:
        sides = side(row.shape), side(shape)
        return max(sides) / min(sides)

    most = RANGE[0] / RANGE[1]
    found = [r for r in rows if distance(r) <= most]
    yield from sorted(found, key=lambda r: (distance(r), r.problem != problem, -side(r.shape)))


def _serves(problem: Problem, row: Row, shape: Shape, groups: int, target: Target) -> bool:
    try:
        lower(problem, row.best.config, target)
        if row.shape == shape:
            return True
        here, there = (
            cost(problem, row.best.config, s, target, groups).waves for s in (shape, row.shape)
        )
    except GemmgenError as e:
        log.debug("tuned config for %s passed over: %s", row.shape, e)
        return False
    return abs(here - there) * WAVES <= max(here, there)


@lru_cache(maxsize=1024)
def _rows(path: Path, said: Start) -> Index:
    """The rows of a file whose lines say so, by place."""
    rows, errors = _lines(path).found(said)
    _warn(errors)
    found: dict[Place, list[Row]] = {}
    for row in rows:
        place = _place(row.device, row.problem, row.groups, row.shape)
        found.setdefault(place, []).append(row)
    return {place: tuple(of_place) for place, of_place in found.items()}


@lru_cache(maxsize=8)
def _lines(path: Path) -> Lines:
    lines = lines_of(path)
    _warn(lines.errors)
    return lines


def _warn(errors: Sequence[ArgumentError]) -> None:
    """One warning says what is of no use."""
    if errors:
        more = f" ({len(errors)} such lines)" if len(errors) > 1 else ""
        warnings.warn(f"tuned configs passed over: {errors[0]}{more}", RuntimeWarning, stacklevel=2)


def forget() -> None:
    """Read the databases again when they are next asked."""
    _rows.cache_clear()
    _lines.cache_clear()
