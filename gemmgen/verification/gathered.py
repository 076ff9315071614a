"""GEMMs of several GPUs that gather A: what each is handed, what each stores, and whether that is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ArgumentError
from ..ir.launchable import Launchable
from ..problem import Problem
from .engines import Engine
from .guarded import POISONS
from .inputs import Operands
from .parts import Part
from .quantised import Result
from .ranked import Machines
from .trial import check_bounded, check_known, collected, output, pitches

Draw = Callable[..., Operands]
Check = Callable[[Part, Result, Engine, int], object]


def drawn(
    draw: Draw, problem: Problem, shape: tuple[int, int, int], ranks: int, seed: int
) -> tuple[Operands, ...]:
    """By rank, the GEMM whose result its D is, M by N of its own columns: A of all ranks is the same. Raises ArgumentError for an M that ranks
    do not share out evenly."""
    if shape[0] % ranks:
        raise ArgumentError("m", shape[0], f"must be a multiple of {ranks}")
    found = [draw(problem.alone, *shape, seed * ranks + rank) for rank in range(ranks)]
    return tuple(replace(x, a=found[0].a, scale_a=found[0].scale_a) for x in found)


def run(
    machines: Machines,
    program: Any,
    kernel: Launchable,
    problem: Problem,
    calls: Sequence[Sequence[Operands]],
    pad: int = 0,
    fill: int = POISONS[0],
) -> list[list[Result]]:
    """By call and rank, D of launches over `calls`, as `drawn` draws them, of one shape, that follow each other. `machines.execute` takes
    them whole, and hands each rank its own rows of A. Raises VerificationError if a byte outside D changed."""
    strides = pitches(kernel, calls[0][0].shape, pad)
    guarded = [[output(problem.alone, x, strides) for x in call] for call in calls]
    after = machines.execute(program, calls, strides, guarded, fill)
    return [
        [
            collected(machines.engine, problem.alone, x, strides, g, bytes_, fill)
            for x, g, bytes_ in zip(call, outs, left, strict=True)
        ]
        for call, outs, left in zip(calls, guarded, after, strict=True)
    ]


def check_exact(
    machines: Machines, problem: Problem, call: Sequence[Operands], got: Sequence[Result]
) -> None:
    """Raise VerificationError unless each rank's D is that of operands whose sums are exact, to the bit (an epilogue without an exact
    result: within its bound)."""
    _each(check_known, machines, problem, call, got)


def check_close(
    machines: Machines, problem: Problem, call: Sequence[Operands], got: Sequence[Result]
) -> None:
    """Raise VerificationError unless each element of each rank's D is within its bound."""
    _each(check_bounded, machines, problem, call, got)


def _each(
    check: Check,
    machines: Machines,
    problem: Problem,
    call: Sequence[Operands],
    got: Sequence[Result],
) -> None:
    for x, result in zip(call, got, strict=True):
        part = Part(problem=problem.alone, operands=x, rows=slice(None))
        check(part, result, machines.engine, x.shape[2])
