"""Which expressions are sums: what becomes of an epilogue where its accumulators are added up only afterwards."""

from __future__ import annotations

from .expr import (
    ACC,
    Acc,
    Argument,
    BinOp,
    Const,
    Expr,
    InGroup,
    OfPair,
    PerColumn,
    PerElement,
    PerRow,
    arguments,
    walk,
)

Linear = tuple[frozenset[Argument], frozenset[Argument]]  # what is added, and what only multiplies


def homogeneous(e: Expr) -> frozenset[Argument] | None:
    """The arguments that, together with the accumulator, `e` is linear in: of parts that add up to these and to it, `e`
    adds up too. None if it is not linear in the accumulator, or adds a number."""
    found = _linear(e)
    if found is None:
        return None
    added, factors = found
    return None if added & factors else added


def _linear(e: Expr) -> Linear | None:
    match e:
        case Acc() | Const(0.0):
            return frozenset(), frozenset()
        case PerColumn() | PerRow() | PerElement():
            return frozenset({e}), frozenset()
        case InGroup(value, _) | OfPair(value, _):
            return _linear(value)
        case BinOp("+" | "-", lhs, rhs):
            one, other = _linear(lhs), _linear(rhs)
            return one and other and (one[0] | other[0], one[1] | other[1])
        case BinOp("*", lhs, rhs):
            return _scaled(lhs, rhs) or _scaled(rhs, lhs)
        case BinOp("/", lhs, rhs):
            return _scaled(lhs, rhs)
    return None


def _scaled(value: Expr, factor: Expr) -> Linear | None:
    found = _linear(value)
    if found is None or ACC in walk(factor):
        return None
    added, factors = found
    return added, factors.union(arguments(factor))
