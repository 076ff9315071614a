"""Epilogues as torch computes them: of sums that torch's own collectives have added up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentError
from ..ir.expr import (
    Acc,
    Argument,
    BinOp,
    Call,
    Const,
    Expr,
    OfPair,
    PerColumn,
    PerRow,
    arguments,
)
from ..runtime.torch_tensors import torch

BINARY = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
FUNCTIONS = {"max": "maximum", "min": "minimum", "divide": "div"}


def applied(epilogue: Expr, sums: Any, given: Mapping[str, Any]) -> Any:
    """`epilogue` of every element of `sums`, float32 [M, N], in FP32. given: what it reads, by name."""
    read = {x.name: _read(x, given[x.name]) for x in arguments(epilogue)}
    return value_of(epilogue, sums, read)


def _read(x: Argument, value: Any) -> Any:
    """As it stands beside [M, N]."""
    value = torch().as_tensor(value)
    match x:
        case PerRow():
            return value.float().reshape(-1, 1)
        case PerColumn():
            return value.float().reshape(1, -1)
    return value.float()


def value_of(e: Expr, acc: Any, read: Mapping[str, Any]) -> Any:
    """`e` of accumulators in FP32, each operation rounded. read: what it reads, by name, as it stands beside them."""
    match e:
        case Acc():
            return acc
        case Const(value):
            return torch().tensor(value)  # on the host, as torch takes one number
        case BinOp(op, lhs, rhs):
            return _called(BINARY[op], acc, read, (lhs, rhs))
        case Call(function, args):
            return _called(FUNCTIONS.get(function, function), acc, read, args)
        case OfPair(value, which):
            return value_of(value, acc, read)[..., which::2]
        case Argument(name):
            return read[name]
    raise ArgumentError("epilogue", e, "must be of no groups: ranks share out the rows of one GEMM")


def _called(function: str, acc: Any, read: Mapping[str, Any], args: tuple[Expr, ...]) -> Any:
    return getattr(torch(), function)(*(value_of(x, acc, read) for x in args))
