"""Where D goes: the plan of a launch that writes it, and what it is where nothing is launched."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..ir.expr import ACC
from ..ir.groupings import GROUPINGS
from ..ir.stores import E4M3_MAX, LEAST_AMAX
from ..problem import Problem
from ..runtime.arrays import Array
from ..runtime.launch import LoadedKernel, Plan
from ..runtime.tensor_map import Matrix
from .epilogue import Shape, Values


def planned(
    kernel: LoadedKernel, shape: Shape, matrices: dict[str, Matrix], values: Values, stream: int
) -> Plan:
    """The plan. A kernel calls `d` what a caller calls `out`, also where that cannot be. Raises ArgumentError."""
    try:
        return kernel.plan(shape, matrices, values, stream)
    except ArgumentError as e:
        word, space, rest = e.argument.partition(" ")
        if word != "d":
            raise
        raise ArgumentError("out" + space + rest, e.value, e.allowed) from e


def of_no_rows(p: Problem, result: dict[str, Any]) -> dict[str, Any]:
    """`result` of a call without rows or without groups. Where a row says that it is in no group, as all do
    then, it comes out as 0; elsewhere rows of no group stay as they were. Raises ArgumentError for arrays that
    are not torch's, which nothing here fills."""
    if GROUPINGS[p.grouping].value(ACC) == ACC:
        return result
    if isinstance(result["out"], Array):
        allowed = "must have at least one group, unless out is a torch tensor"
        raise ArgumentError("b shape", "no groups", allowed)
    result["out"].zero_()
    if "scale_out" in result:
        result["scale_out"].fill_(LEAST_AMAX / E4M3_MAX)
    return result
