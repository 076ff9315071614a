"""Groups that split K: the sides of their operands, and what comes out where there is no K at all."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import E4M3, F32
from ..ir.expr import ACC, Expr, PerElement
from ..problem import Problem
from ..recipes import SCALE_BLOCK, recipe
from ..runtime.torch_tensors import check_tensor, empty
from .calls import operand_shape
from .epilogue import Shape


def matrix(name: str, x: Any, scale: Any, first: Any) -> Any:
    """A flat operand as [rows, sum K]; its scales say how many of each there are."""
    device = first.device if first is not None else None
    rows, blocks = check_tensor(f"scale_{name}", scale, F32, (None, None), device)
    check_tensor(name, x, E4M3, (rows * blocks * SCALE_BLOCK,), device, contiguous=True)
    return x.view(rows, blocks * SCALE_BLOCK)


def sides(p: Problem, a: Any, b: Any) -> Shape:
    """(M, N, K of all groups), K perhaps 0 where D then is 0 or what is added. Raises ArgumentError."""
    turned = p.mn_major[0]
    k = check_tensor("a", a, p.a, (None, None), contiguous=True)[not turned]
    if recipe(p.family).scaled and k % SCALE_BLOCK:
        raise ArgumentError("a columns", k, f"must be a multiple of {SCALE_BLOCK}")
    if k or p.epilogue not in added_to(p):
        return operand_shape(p, a, b)
    wanted = (0, None) if p.mn_major[1] else (None, 0)
    n = check_tensor("b", b, p.b, wanted, a.device)[p.mn_major[1]]
    return a.shape[turned], n, 0


def of_nothing(
    p: Problem, out: Any, given: dict[str, Any], shape: tuple[int, ...], device: Any
) -> Any:
    """What comes out if there is no K at all, of any group: there is nothing to multiply. given: what the epilogue reads, among it c, if
    something is added that is not `out` itself. Raises ArgumentError for another epilogue."""
    if p.epilogue not in added_to(p):
        allowed = "must have at least one group, unless nothing but c is added to the sums"
        raise ArgumentError("a shape", "no groups", allowed)
    out = empty(shape, p.d, device) if out is None else out
    check_tensor("out", out, p.d, shape, device, contiguous=True)
    if p.accumulate:
        return out
    c = given.get("c")
    if c is None:
        return out.zero_()
    check_tensor("c", c, p.d, shape, device, contiguous=True)
    return out.copy_(c)


def added_to(p: Problem) -> tuple[Expr, ...]:
    """The epilogues of a sum itself, and of one that c is added to."""
    return ACC, ACC + PerElement("c", p.d)
