"""One kernel on trial at one shape: on a GPU, or on anything else that can execute a launch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..codes import Codes
from ..errors import VerificationError
from ..ir.dtypes import F32, DType
from ..ir.expr import BEFORE
from ..ir.groupings import ALONE, Layout, summed_k
from ..ir.heads import gaps_of
from ..ir.launchable import Launchable
from ..ir.stores import OUTPUT_SCALE_BLOCK
from ..problem import Problem
from . import quantised
from .check import BoundReport, check_bound, check_exact, check_repeat, check_rest, merge
from .engines import Engine
from .epilogue import transcendental
from .gaps import between_gaps
from .groups import cleared, owned, some
from .guarded import POISONS, Buffer, Guarded
from .inputs import Operands, exact_integers, random_normal
from .ladder import ladder
from .parts import Part, parts
from .quantised import Result
from .tensor_core import Share, Slices
from .windows import from_windows

TMA_ALIGNMENT = 16  # bytes: every row stride a tensor map describes


@dataclass(frozen=True, kw_only=True)
class Pitches:
    """Row strides in elements of A, B and D as they are stored; the scales of A are along M, columns `scale_a` apart."""

    a: int
    b: int
    d: int
    scale_a: int
    scale_b: int  # where each row of B has scales: they lie along N, as A's along M
    gap: int = 0  # rows between two groups of a tensor that has groups
    scale_d: int = 0  # the scales of an FP8 D lie along M too


class Machine(Protocol):
    """Something that executes one loaded kernel."""

    @property
    def engine(self) -> Engine:
        """What verification computes its references with."""

    @property
    def repeats(self) -> bool:
        """Whether a launch over the same bytes leaves the same bytes, whatever the kernel."""

    def execute(
        self, program: Any, operands: Operands, pitches: Pitches, output: Guarded, fill: int
    ) -> Buffer:
        """The bytes of `output`, poisoned with `fill` before and written by one launch of `program`.

        Operands lie in parents filled with NaN (scales too), so that reading past them shows.
        """


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What held at one shape; a failure raises instead."""

    shape: tuple[int, int, int]
    exact: bool  # bitwise equal on exact integers (False: the epilogue has no exact result)
    bound: BoundReport
    launches: int


def pitches(kernel: Launchable, shape: tuple[int, int, int], pad: int = 0) -> Pitches:
    """The least row strides TMA allows, plus `pad` further pieces of 16 bytes."""
    m, n, k = shape
    (a, a_row), (b, b_row) = (_stored(kernel, x, {"m": m, "n": n, "k": k}) for x in "ab")
    d = kernel.buffer("smem_d").dtype
    return Pitches(
        a=_pitch(a_row, a, pad),
        b=_pitch(b_row, b, pad),
        d=_pitch(gaps_of(kernel.maps).columns(n // kernel.block.fold), d, pad),
        scale_a=_pieces(m, 4, pad),
        scale_b=_pieces(n, 4, pad),
        gap=pad,
        scale_d=_pieces(m, 4, pad),
    )


def _stored(kernel: Launchable, tensor: str, sides: dict[str, int]) -> tuple[DType, int]:
    """Of A or B, and the elements of a row."""
    for x in kernel.pointed:
        if x.tensor == tensor:
            return x.dtype, sides[x.inner]
    m = kernel.map(f"map_{tensor}")
    return kernel.buffer(m.smem).dtype, sides[m.inner]


def share_of(kernel: Launchable, k: int, layout: Layout = ALONE) -> Share:
    """How much of K is summed by itself where CTAs of a cluster divide it, or one does in shares; 0 where none does. Or what slices of it, where
    warpgroups do."""
    k = summed_k(kernel.groups.summed, k, layout.groups, kernel.block.k)
    if kernel.slices > 1:
        return Slices(count=kernel.slices, block=kernel.block.k)
    parts, blocks = max(kernel.cluster.k, kernel.shares), -(-k // kernel.block.k)
    return -(-blocks // parts) * kernel.block.k if parts > 1 else 0


def judge(
    machine: Machine,
    program: Any,
    kernel: Launchable,
    problem: Problem,
    shape: tuple[int, int, int],
    seed: int = 0,
    pad: int = 0,
    layout: Layout | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verdict:
    """Run `program` five times: exact integers and random data, each over two poisons, and a ladder. On a machine
    that repeats itself three times, each over one: what is unwritten shows in all of them.
    `layout` says what the groups are (None: some). progress: of the inputs, as their results are verified.

    Raises VerificationError if a bit differs from the exact result or between two runs, an element
    leaves its error bound, an element stays unwritten, or a byte around the output changes.
    """
    layout = layout or some(problem, shape)
    strides, share = pitches(kernel, shape, pad), share_of(kernel, shape[2], layout)

    def result(operands: Operands, *fills: int) -> Result:
        results = [run(machine, program, problem, operands, strides, fill) for fill in fills]
        for other in results[1:]:
            check_repeat(results[0].codes, other.codes, machine.engine)
            if problem.quantised:
                check_repeat(results[0].scales, other.scales, machine.engine)
        return results[0]

    both, (first, second) = (not machine.repeats), (POISONS[:1], POISONS[1:])
    plan = ((exact_integers, POISONS if both else first), (ladder, first if both else second))
    for done, (draw, fills) in enumerate(plan, 1):
        operands = draw(problem, *shape, seed, layout)
        got = result(operands, *fills)
        for part in parts(problem, operands, strides.gap, kernel.block.k):
            check_known(part, got.rows(part.rows), machine.engine, share)
        progress(done, len(plan) + 1)
    random = random_normal(problem, *shape, seed, layout)
    fills = POISONS if both else first
    got = result(random, *fills)
    reports = [
        check_bounded(part, got.rows(part.rows), machine.engine, share)
        for part in parts(problem, random, strides.gap, kernel.block.k)
    ]
    launches = sum(len(x) for _, x in (*plan, (random, fills)))
    exact = not transcendental(problem.value)
    return Verdict(shape=shape, exact=exact, bound=merge(reports), launches=launches)


def check_launch(
    machine: Machine,
    program: Any,
    kernel: Launchable,
    problem: Problem,
    operands: Operands,
    strides: Pitches,
    fill: int = POISONS[0],
) -> None:
    """The least that tells a wrong kernel: one launch over `exact_integers` and one poison.

    Raises VerificationError if a bit differs from the exact result (an epilogue without one: if an element
    leaves its bound), or a byte around the output changes.
    """
    share = share_of(kernel, operands.shape[2], operands.layout)
    got = run(machine, program, problem, operands, strides, fill)
    for part in parts(problem, operands, strides.gap, kernel.block.k):
        check_known(part, got.rows(part.rows), machine.engine, share)


def check_known(part: Part, got: Result, engine: Engine, share: Share) -> None:
    """Of operands whose sums are exact: to the bit, or within what the epilogue's functions are off."""
    if transcendental(part.problem.value):
        check_bounded(part, got, engine, share)
    elif part.problem.quantised:
        quantised.check_exact(part.problem, part.operands, got, engine)
    else:
        check_exact(part.problem, part.operands, got.codes, engine)


def check_bounded(part: Part, got: Result, engine: Engine, share: Share) -> BoundReport:
    if part.problem.quantised:
        return quantised.check_bound(part.problem, part.operands, got, engine, share)
    return check_bound(part.problem, part.operands, got.codes, engine, share)


def output(problem: Problem, operands: Operands, strides: Pitches) -> Guarded:
    """D of a launch, all groups' rows counted through, and beside it its scales if it is FP8, or its rows' sums of squares."""
    m, n = operands.d_m, operands.d_columns
    start = None
    if problem.accumulate:
        before = np.asarray(operands.arguments[BEFORE.name])
        gap = strides.gap * (before.ndim > 2)
        start = np.pad(before.reshape(-1, m, n), ((0, 0), (0, gap), (0, 0))).reshape(-1, n)
    return Guarded(
        dtype=problem.d,
        rows=operands.d_rows(strides.gap),
        cols=n,
        pitch=strides.d,
        start=start,
        started=owned(problem, m, operands.layout, strides.gap),
        beside=_beside(operands, strides) if problem.quantised or problem.squares else None,
    )


def _beside(operands: Operands, strides: Pitches) -> Guarded:
    groups = operands.d_groups
    rows = scale_blocks(operands) + strides.gap * len(groups)
    return Guarded(
        dtype=F32, rows=rows * math.prod(groups), cols=operands.shape[0], pitch=strides.scale_d
    )


def scale_blocks(operands: Operands) -> int:
    """Scales per row of an FP8 D; of sums of squares there is one."""
    return 1 if operands.squares else -(-operands.shape[1] // operands.fold // OUTPUT_SCALE_BLOCK)


def run(
    machine: Machine,
    program: Any,
    problem: Problem,
    operands: Operands,
    strides: Pitches,
    fill: int,
) -> Result:
    """D of one launch, rows in no group as zeros. Raises VerificationError if a byte outside D's rows changed."""
    guarded = output(problem, operands, strides)
    after = machine.execute(program, operands, strides, guarded, fill)
    return collected(machine.engine, problem, operands, strides, guarded, after, fill)


def collected(
    engine: Engine,
    problem: Problem,
    operands: Operands,
    strides: Pitches,
    guarded: Guarded,
    after: Buffer,
    fill: int,
) -> Result:
    """D in `after`, the bytes of `guarded` that a launch has left, as `run` returns it."""
    guarded.check(after, fill)
    codes = between_gaps(guarded.extract(after), operands.heads, fill)
    if problem.compact:
        codes = from_windows(codes, problem, operands.arguments, fill)
    where = (problem, operands.d_m, operands.layout, strides.gap)
    mine = owned(*where)
    check_rest(codes, mine, cleared(*where), fill)
    codes[~mine] = 0
    if guarded.beside is None:
        return Result(codes=engine.lift(codes))
    scales = _scales(operands, strides, guarded.beside.extract(after[guarded.own :]), fill)
    quantised.unwritten(scales, mine, cleared(*where), fill)
    scales[~mine] = 0
    if problem.squares:
        return Result(codes=engine.lift(np.concatenate([codes, scales], 1)))
    return Result(codes=engine.lift(codes), scales=engine.lift(scales))


def _scales(operands: Operands, strides: Pitches, image: Codes, fill: int) -> Codes:
    """From rows of M, one per block of columns (and group), to codes [rows of D, blocks]."""
    groups, m, blocks = operands.d_groups, operands.shape[0], scale_blocks(operands)
    by_group = image.reshape(*groups, -1, m)
    if (np.ascontiguousarray(by_group[..., blocks:, :]).view(np.uint8) != fill).any():
        raise VerificationError("what lies between two groups' scales was overwritten")
    scales = by_group[..., :blocks, :].swapaxes(-1, -2)
    gap = np.full((*groups, strides.gap * len(groups), blocks), fill * 0x01010101, np.uint32)
    return np.concatenate([scales, gap], -2).reshape(-1, blocks)


def _pitch(side: int, dtype: DType, pad: int) -> int:
    return _pieces(side, TMA_ALIGNMENT // dtype.bytes, pad)


def _pieces(side: int, step: int, pad: int) -> int:
    return (-(-side // step) + pad) * step
