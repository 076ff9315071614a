"""Sums of squares of A's rows, in the product's last column: what they are, and how far FP32 may be from them."""

from __future__ import annotations

from ..ir.expr import fold
from ..problem import Problem
from .engines import Array
from .epilogue import ULP
from .tensor_core import Approximate

MORE = 64  # additions besides those of A's columns: of lanes, CTAs and warpgroups that divide K


def with_squares(problem: Problem, a: Array, acc: Array) -> Array:
    """The product [M, N] and, in its last column (of a pair the first), the sum of squares of A's row. a: float64 [M, K]."""
    if not problem.squares:
        return acc
    acc = acc + 0.0
    acc[:, -fold(problem.epilogue)] += (a * a).sum(1)
    return acc


def bounded_squares(problem: Problem, a: Array, acc: Approximate) -> Approximate:
    """The same with its bound: a square has no rounding in FP32, a sum of positive numbers as many as it has, in any order."""
    if not problem.squares:
        return acc
    squares, column = (a * a).sum(1), -fold(problem.epilogue)
    error = acc.error + 0.0
    error[:, column] += (a.shape[1] + MORE) * ULP * (squares + abs(acc.value[:, column]))
    return Approximate(value=with_squares(problem, a, acc.value), error=error)
