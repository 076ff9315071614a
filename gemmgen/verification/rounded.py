"""The sum of several GEMMs, of which all, or all but the first, are rounded to 16 bits before they are added in FP32, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..ir.dtypes import F32, DType
from ..ir.expr import ACC
from ..problem import Problem
from . import check, quantised
from .check import BoundReport
from .engines import Array, Engine
from .epilogue import Interval, enclose, lift_arguments, transcendental
from .inputs import Operands
from .parts import Part
from .quantised import Result
from .reference import Enclosure, enclosure, finish, product


def check_known(
    part: Part, sums: Sequence[Operands], wire: DType, got: Result, engine: Engine, first: bool
) -> None:
    """Of operands whose sums are exact before they are rounded: to the bit, or within what the epilogue's functions are off.
    part: its epilogue, and what that reads. sums: in order. first: whether that is rounded too. Raises VerificationError."""
    p = part.problem
    if transcendental(p.value):
        check_bounded(part, sums, wire, got, engine, first)
        return
    total, *others = (product(_sum(p), x, engine) for x in sums)
    total = _as(wire, total, engine) if first else total
    for other in others:
        total = _as(F32, total + _as(wire, other, engine), engine)
    values = finish(p, part.operands, total + 0.0, engine)
    if p.quantised:
        quantised.judge_exact(values, got, engine)
    else:
        check.judge_exact(p.d, values, got.codes, engine)


def check_bounded(
    part: Part, sums: Sequence[Operands], wire: DType, got: Result, engine: Engine, first: bool
) -> BoundReport:
    """Each element of D is one that FP32 sums within their bounds give. Raises VerificationError."""
    x = _enclosure(part, sums, wire, engine, first)
    if part.problem.quantised:
        return quantised.judge_bounds(x, got, engine)
    return check.judge_bounds(part.problem.d, x, got.codes, engine)


def _enclosure(
    part: Part, sums: Sequence[Operands], wire: DType, engine: Engine, first: bool
) -> Enclosure:
    """Rounding and adding grow with what they are given: the ends of an interval go where its values go."""
    p, operands = part.problem, part.operands
    total, *others = (enclosure(_sum(p), x, engine) for x in sums)
    with np.errstate(all="ignore"):
        if first:
            want, low, high = (_as(wire, x, engine) for x in (total.want, total.low, total.high))
            total = Enclosure(want=want, low=low, high=high)
        for other in others:
            want = total.want + _as(wire, other.want, engine)
            low, high = (
                _as(F32, x + _as(wire, y, engine), engine)
                for x, y in ((total.low, other.low), (total.high, other.high))
            )
            total = Enclosure(want=want, low=low, high=high)
        args = lift_arguments(p.value, operands, engine)
        held = enclose(p.value, Interval(low=total.low, high=total.high), args, engine)
    want = finish(p, operands, total.want + 0.0, engine)
    return Enclosure(want=want, low=held.low, high=held.high)


def _sum(problem: Problem) -> Problem:
    """Before its epilogue."""
    return replace(problem, d=F32, epilogue=ACC, accumulate=False)


def _as(dtype: DType, x: Array, engine: Engine) -> Array:
    """Rounded to nearest even."""
    return engine.decode(engine.round_to(x, dtype), dtype)
