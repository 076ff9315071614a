"""GEMMs that several GPUs compute together: what each is handed, what each stores, and whether that is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..errors import ArgumentError, VerificationError
from ..ir.collectives import COLLECTIVES
from ..ir.dtypes import DType
from ..ir.groupings import Depth, Segment
from ..ir.launchable import Launchable
from ..problem import Problem, depth_step
from . import rounded
from .engines import Engine
from .guarded import POISONS, Buffer, Guarded
from .inputs import Operands
from .parts import Part, one
from .quantised import Result
from .trial import Pitches, check_bounded, check_known, collected, output, pitches

Check = Callable[[Part, Result, Engine, int], object]
OfRounded = Callable[[Part, Sequence[Operands], DType, Result, Engine, bool], object]


class Machines(Protocol):
    """GPUs that execute launches of one loaded kernel together."""

    @property
    def ranks(self) -> int: ...

    @property
    def engine(self) -> Engine:
        """What verification computes its references with."""

    def execute(
        self,
        program: Any,
        calls: Sequence[Sequence[Operands]],
        strides: Pitches,
        outputs: Sequence[Sequence[Guarded]],
        fill: int,
    ) -> list[list[Buffer]]:
        """By call and rank, the bytes of `outputs`, poisoned with `fill` before. `calls`: by rank, what each is
        handed, A of all rows. Calls follow each other on each rank; ranks wait for each other within them only."""


@dataclass(frozen=True, kw_only=True)
class Together:
    """One GEMM, (ranks * M, N, ranks * K), of an all-reduce (M, N, ranks * K): by rank what it is handed, and the GEMM whose result its D is."""

    handed: tuple[Operands, ...]
    stored: tuple[Operands, ...]


def together(problem: Problem, whole: Operands, ranks: int) -> Together:
    """Each rank is handed all rows of its share of K, and the epilogue's arguments of its own rows, which are all of an all-reduce. Raises ArgumentError for
    rows or K that `ranks` do not share out evenly."""
    m, _, k = whole.shape
    step, parts = ranks * depth_step(problem), 1 if _alike(problem) else ranks
    if m % parts or k % step:
        raise ArgumentError("m, k", (m, k), f"must be multiples of {parts} and of {step}")
    plain, of_m, of_k = problem.alone, m // parts, k // ranks
    every, all_k = Segment(group=0, first=0, end=m), Depth(first=0, end=k)
    stored = tuple(
        one(plain, whole, Segment(group=0, first=x, end=x + of_m), all_k) for x in range(0, m, of_m)
    )
    if _alike(problem):
        stored *= ranks
    shares = [one(plain, whole, every, Depth(first=x, end=x + of_k)) for x in range(0, k, of_k)]
    handed = tuple(
        replace(x, arguments=own.arguments, mn_major=whole.mn_major)
        for x, own in zip(shares, stored, strict=True)
    )
    return Together(handed=handed, stored=stored)


def run(
    machines: Machines,
    program: Any,
    kernel: Launchable,
    problem: Problem,
    calls: Sequence[Operands],
    pad: int = 0,
    fill: int = POISONS[0],
) -> list[list[Result]]:
    """By call and rank, D of launches over `calls`, whole GEMMs of one shape that follow each other. Raises VerificationError if a
    byte outside D changed."""
    cut = [together(problem, whole, machines.ranks) for whole in calls]
    strides = pitches(kernel, cut[0].handed[0].shape, pad)
    of_d = pitches(kernel, cut[0].stored[0].shape, pad)
    strides = replace(strides, d=of_d.d, scale_d=of_d.scale_d)
    guarded = [[output(problem.alone, x, strides) for x in call.stored] for call in cut]
    after = machines.execute(program, [call.handed for call in cut], strides, guarded, fill)
    return [
        [
            collected(machines.engine, problem.alone, x, strides, g, bytes_, fill)
            for x, g, bytes_ in zip(call.stored, outs, left, strict=True)
        ]
        for call, outs, left in zip(cut, guarded, after, strict=True)
    ]


def check_exact(
    machines: Machines, problem: Problem, whole: Operands, got: Sequence[Result]
) -> None:
    """Raise VerificationError unless each rank's D is that of operands whose sums are exact, to the bit (an epilogue without an
    exact result: within its bound). Sums that travel in 16 bits are rounded to them here too."""
    _each((check_known, rounded.check_known), machines, problem, whole, got)


def check_close(
    machines: Machines, problem: Problem, whole: Operands, got: Sequence[Result]
) -> None:
    """Raise VerificationError unless each element of each rank's D is within its bound."""
    _each((check_bounded, rounded.check_bounded), machines, problem, whole, got)


def _each(
    checks: tuple[Check, OfRounded],
    machines: Machines,
    problem: Problem,
    whole: Operands,
    got: Sequence[Result],
) -> None:
    """Check each rank's D: by the first, or where sums are rounded by the second."""
    cut, (check, of_rounded) = together(problem, whole, machines.ranks), checks
    if _alike(problem):
        _same(got)
    share = whole.shape[2] // machines.ranks
    for owner, (x, result) in enumerate(zip(cut.stored, got, strict=True)):
        part = Part(problem=problem.alone, operands=x, rows=slice(None))
        if problem.wire is None:
            check(part, result, machines.engine, share)
        else:
            sums = summed(problem, whole, machines.ranks, owner)
            of_rounded(part, sums, problem.wire, result, machines.engine, _alike(problem))


def _alike(problem: Problem) -> bool:
    """Whether every rank stores the same."""
    return COLLECTIVES[problem.collective].whole


def _same(got: Sequence[Result]) -> None:
    """Raise VerificationError unless all ranks have the same bits."""
    for rank, x in enumerate(got):
        if (x.codes != got[0].codes).any():
            raise VerificationError(f"rank {rank} has other bits than rank 0")


def summed(problem: Problem, whole: Operands, ranks: int, owner: int) -> list[Operands]:
    """The GEMMs whose sum is the rows of `owner`: its own share of K, then those of the ranks behind it; of an all-reduce that of all
    rows, in order of ranks."""
    of_m, of_k = whole.shape[0] // ranks, whole.shape[2] // ranks
    rows = Segment(group=0, first=owner * of_m, end=(owner + 1) * of_m)
    if _alike(problem):
        owner, rows = 0, Segment(group=0, first=0, end=whole.shape[0])
    shares = [(owner + i) % ranks * of_k for i in range(ranks)]
    return [one(problem.alone, whole, rows, Depth(first=x, end=x + of_k)) for x in shares]
