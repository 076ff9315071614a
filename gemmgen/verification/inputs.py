"""Inputs worth multiplying: integers whose result is exact, and random data that looks real."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ..codes import Codes
from ..errors import ArgumentError
from ..ir.expr import (
    arguments,
    fold,
)
from ..ir.groupings import ALONE, GROUPINGS, Depth, Layout, check_layout, depths, summed_k
from ..ir.heads import NO_GAPS, Heads
from ..ir.row_sums import fold_rows
from ..problem import Problem, depth_step
from ..recipes import SCALE_BLOCK, recipe
from .coded import exactly, randomly
from .drawn_arguments import Values as Values
from .drawn_arguments import drawn_arguments
from .drawn_codes import normal, signs
from .groups import owned, some
from .indexed import NAN_BYTE, Indices, by_index
from .paged import by_page
from .stacking import dealt, stack, stacked


@dataclass(frozen=True, kw_only=True, eq=False)
class Operands:
    """What one launch reads.

    In a grouped launch what belongs to a group has a leading group dimension, and `layout` says which
    rows are whose (gemmgen.ir.groupings).

    a [M, K], b [N, K]: codes of the problem's dtypes; mn_major says which of them a launch finds
    stored the other way round, [K, M] or [K, N]. scale_a float32 [M, ceil(K/128)] and
    scale_b float32 [ceil(N / rows_per_scale), ceil(K/128)], or None, of B alone or of both. arguments: the epilogue's, by name, a
    float for a Scalar, float32 [1] for a DeviceScalar, [N] for a PerColumn and [M] for a PerRow, int32 [rows of D] for a RowBound,
    codes [M, N] for a PerElement. pages: int32 [G, ceil(N/64)], where B's rows come by page: which of those that a launch finds stored each 64
    of a group's rows are. indices: int32 [M], where A's rows come by index: row r of a is row indices[r] // top of what a
    launch finds stored; -1 in rows that it does not. blocks: uint8 [ceil(N/64), ceil(K/128), bytes], where B is packed weights: a launch
    finds them stored, and b is the numbers that they stand for.
    """

    a: Codes
    b: Codes
    scale_a: Values | None = None
    scale_b: Values | None = None
    arguments: Mapping[str, float | Values | Codes] = field(default_factory=dict)
    layout: Layout = ALONE
    mn_major: tuple[bool, bool] = (False, False)
    rows_per_scale: int = SCALE_BLOCK  # rows of B that share one of scale_b
    fold: int = 1  # columns of the product per column of D
    fold_rows: int = 1  # rows of the product per row of D
    heads: Heads = NO_GAPS  # how D's columns lie in memory
    squares: bool = False  # the last of them lies apart: sums of squares
    packing: str = ""  # how groups lie that split K: Grouping.depths
    summed: bool = False  # D is one, of all groups: Grouping.summed
    indices: Indices | None = None
    top: int = 1
    blocks: npt.NDArray[np.uint8] | None = None
    pages: Indices | None = None
    in_pages: tuple[str, ...] = ()  # arguments that lie in B's pages
    page_rows: int = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """M (of A, or of each group's), N, K."""
        return self.a.shape[-2], self.b.shape[-2], self.a.shape[-1]

    @property
    def d_m(self) -> int:
        """Rows of D, or of each group's."""
        return int(self.a.shape[-2]) // self.fold_rows

    @property
    def d_columns(self) -> int:
        """Columns of D in memory, those that no launch writes among them; without that of sums of squares."""
        return self.heads.columns(int(self.b.shape[-2]) // self.fold) - self.squares

    def d_rows(self, gap: int) -> int:
        """Rows of D in memory, with `gap` of them after each group that has rows of its own."""
        groups = self.d_groups
        return math.prod((*groups, self.d_m + gap * len(groups)))

    @property
    def d_groups(self) -> tuple[int, ...]:
        """D's leading dimension, if it has one."""
        if self.summed:
            return ()
        return (self.layout.groups,) if self.packing else self.a.shape[:-2]

    def __post_init__(self) -> None:
        m, n, k = self.shape
        rows, columns = self.a.shape[:-2], self.b.shape[:-2]
        _expect("b", self.b.shape, (*columns, n, k))
        blocks = -(-k // SCALE_BLOCK)
        if self.scale_a is not None:
            _expect("scale_a", self.scale_a.shape, (*rows, m, blocks))
        if self.scale_b is not None:
            scales = -(-n // self.rows_per_scale)
            _expect("scale_b", self.scale_b.shape, (*columns, scales, blocks))


def exact_integers(
    problem: Problem, m: int, n: int, k: int, seed: int, layout: Layout | None = None
) -> Operands:
    """Operands in {-1, 0, 1}, scales and arguments powers of two: every FP32 partial sum is exact.

    The density keeps about 24 products per output element, so one lost product stays visible in a
    bf16 result at any K. Sums are exact up to K = 2^20: |D| <= 4 K in steps of 1/4.
    """
    layout = layout or some(problem, (m, n, k))
    summed = summed_k(GROUPINGS[problem.grouping].summed, k, layout.groups, 1)
    density = min(1.0, math.sqrt(24 / summed)) if summed > 0 else 1.0
    tables = (signs(problem.a, density), signs(problem.b, density))
    return grouped(problem, (m, n, k), seed, layout, partial(_draw, tables=tables, exact=True))


def random_normal(
    problem: Problem, m: int, n: int, k: int, seed: int, layout: Layout | None = None
) -> Operands:
    """N(0, 1) operands rounded to their dtypes, integers uniform over all codes; scales and |arguments| log-uniform in [0.5, 2]."""
    tables = (normal(problem.a), normal(problem.b))
    return grouped(problem, (m, n, k), seed, layout, partial(_draw, tables=tables, exact=False))


# One group's operands, from a problem, its shape, a seed, and the stretches of K that are summed.
Draw = Callable[[Problem, tuple[int, int, int], int, Sequence[Depth]], Operands]


def grouped(
    problem: Problem, shape: tuple[int, int, int], seed: int, layout: Layout | None, draw: Draw
) -> Operands:
    """Every group drawn by itself (`layout` None: some groups). What no group may read is NaN.

    Raises ArgumentError for a layout that the grouping does not allow.
    """
    layout = layout or some(problem, shape)
    check_layout(problem.grouping, shape[0], layout, problem.alignment)
    g = GROUPINGS[problem.grouping]
    if g.depths:
        return _deep(problem, shape, seed, layout, draw)
    if g.summed:
        return _summed(problem, shape, seed, layout, draw)
    whole_k = [Depth(first=0, end=shape[2])]
    drawn = [draw(problem, shape, seed + 1000 * i, whole_k) for i in range(layout.groups)]
    first, given = drawn[0], [x.arguments for x in drawn]
    if not g.columns:
        return first
    whole = Operands(
        a=np.stack([x.a for x in drawn]) if g.rows else first.a.copy(),
        b=np.stack([x.b for x in drawn]),
        blocks=None if first.blocks is None else np.stack([np.asarray(x.blocks) for x in drawn]),
        scale_a=stack([x.scale_a for x in drawn] if g.rows else [first.scale_a], g.rows),
        scale_b=stack([x.scale_b for x in drawn], True),
        arguments={x.name: stacked(problem, x, given) for x in arguments(problem.value)},
        layout=layout,
        mn_major=problem.mn_major,
        rows_per_scale=first.rows_per_scale,
        fold=first.fold,
        fold_rows=first.fold_rows,
        squares=first.squares,
    )
    lost = ~owned(problem, shape[0], layout).reshape(whole.a.shape[:-1])
    whole.a.view(np.uint8).reshape(*whole.a.shape[:-1], -1)[lost] = NAN_BYTE
    if whole.scale_a is not None:
        whole.scale_a[lost] = np.nan
    whole = by_page(whole, problem.value, seed, problem.paged) if problem.paged else whole
    return by_index(whole, lost, seed) if problem.indexed else whole


def _deep(
    problem: Problem, shape: tuple[int, int, int], seed: int, layout: Layout, draw: Draw
) -> Operands:
    """A and B drawn once, for groups that split their K; what an epilogue reads, for every group."""
    step = depth_step(problem)
    for count in layout.table:
        if count % step:
            raise ArgumentError("table", count, f"K of a group must be a multiple of {step}")
    m, n, k = shape
    summed, one = depths(problem.grouping, k, layout), [Depth(first=0, end=1)]
    others = [draw(problem, (m, n, 1), seed + 1000 * i, one) for i in range(1, layout.groups)]
    drawn = [draw(problem, shape, seed, summed), *others]
    first, end, given = drawn[0], summed[-1].end, [x.arguments for x in drawn]
    a, b = first.a.copy(), first.b.copy()
    for codes in (a, b):
        codes.view(np.uint8).reshape(*codes.shape, -1)[:, end:] = NAN_BYTE
    return replace(
        first,
        a=a,
        b=b,
        arguments={x.name: stacked(problem, x, given) for x in arguments(problem.value)},
        layout=layout,
        packing=GROUPINGS[problem.grouping].depths,
    )


def _summed(
    problem: Problem, shape: tuple[int, int, int], seed: int, layout: Layout, draw: Draw
) -> Operands:
    """Drawn as one GEMM, of whose K each group has a stretch."""
    m, n, k = shape
    whole = k * layout.groups
    drawn = draw(problem, (m, n, whole), seed, [Depth(first=0, end=whole)])
    a, b = (dealt(x, layout.groups) for x in (drawn.a, drawn.b))
    return replace(drawn, a=a, b=b, layout=layout, summed=True)


def _draw(
    problem: Problem,
    shape: tuple[int, int, int],
    seed: int,
    summed: Sequence[Depth],
    tables: tuple[Codes, Codes],
    *,
    exact: bool,
) -> Operands:
    m, n, k = shape
    check_sides(problem, shape)
    rng = np.random.Generator(np.random.PCG64(seed))
    blocks = -(-k // SCALE_BLOCK)
    sums = recipe(problem.family)
    of_b = sums.scale_rows
    drawn = Operands(
        a=_sample(rng, tables[0], (m, k)),
        b=_sample(rng, tables[1], (n, k)),
        scale_a=powers(rng, (m, blocks), exact) if sums.scaled else None,
        scale_b=powers(rng, (-(-n // of_b), blocks), exact) if of_b else None,
        arguments=drawn_arguments(problem, shape, partial(_signed, rng, exact=exact)),
        mn_major=problem.mn_major,
        rows_per_scale=of_b or SCALE_BLOCK,
        fold=fold(problem.epilogue),
        fold_rows=fold_rows(problem.epilogue),
        heads=problem.gaps,
        squares=problem.squares,
    )
    if problem.form is None:
        return drawn
    packed: Operands = (exactly if exact else randomly)(drawn, problem.form, seed)
    return packed


def _sample(rng: np.random.Generator, codes: Codes, shape: tuple[int, int]) -> Codes:
    draws = np.frombuffer(rng.bytes(2 * shape[0] * shape[1]), "<u2")
    return np.take(codes, draws).reshape(shape)


def powers(rng: np.random.Generator, shape: tuple[int, ...], exact: bool) -> Values:
    """2^e, e in {-1, 0, 1} or uniform between."""
    e = rng.integers(-1, 2, shape) if exact else rng.uniform(-1, 1, shape)
    return np.exp2(e).astype(np.float32)


def _signed(rng: np.random.Generator, shape: tuple[int, ...], *, exact: bool) -> Values:
    """Either sign and never near zero: an argument may be a divisor."""
    values: Values = powers(rng, shape, exact) * rng.choice(np.array([-1, 1], np.float32), shape)
    return values


def check_sides(problem: Problem, shape: tuple[int, int, int]) -> None:
    recipe(problem.family)
    for name, value, least in zip("mnk", shape, (0, 0, 1), strict=True):
        if value < least:
            raise ArgumentError(name, value, f"must be at least {least}")
    if shape[1] % fold(problem.epilogue):
        raise ArgumentError("n", shape[1], "must be even: the epilogue pairs columns")
    if shape[0] % fold_rows(problem.epilogue):
        allowed = (
            f"must be a multiple of {fold_rows(problem.epilogue)}: the epilogue sums as many rows"
        )
        raise ArgumentError("m", shape[0], allowed)


def _expect(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if shape != wanted:
        raise ArgumentError(name, shape, f"must have the shape {wanted}")
