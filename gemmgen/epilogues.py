"""The epilogue library. A new elementwise epilogue is one line in EPILOGUES."""

from __future__ import annotations

import hashlib
import re
from typing import Any, get_args

from .errors import ArgumentError
from .ir.expr import (
    ACC,
    Argument,
    BinOp,
    Call,
    Const,
    DeviceScalar,
    Expr,
    Function,
    Op,
    PerColumn,
    PerRow,
    Scalar,
    arguments,
)

acc = ACC
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")  # of an argument: it becomes a C identifier


def relu(x: Expr) -> Expr:
    return Call("max", (x, Const(0.0)))


def silu(x: Expr) -> Expr:
    return x / (1.0 + Call("exp", (x * -1.0,)))


EPILOGUES: dict[str, Expr] = {
    "none": acc,
    "alpha": acc * Scalar("alpha"),
    "bias": acc + PerColumn("bias"),
    "relu": relu(acc),
    "silu": silu(acc),
    "bias_relu": relu(acc + PerColumn("bias")),
    "bias_silu": silu(acc + PerColumn("bias")),
    "scaled": acc * PerRow("row_scale") * PerColumn("column_scale"),
    "tensor_scaled": acc * (DeviceScalar("scale_a") * DeviceScalar("scale_b")),
}


def name_of(e: Expr) -> str | None:
    """The name `e` has in EPILOGUES, or None."""
    return next((name for name, known in EPILOGUES.items() if known == e), None)


def label_of(e: Expr) -> str:
    """A C-identifier-safe label: the name, or a digest of an expression that has none."""
    return name_of(e) or "epilogue_" + hashlib.sha256(repr(e).encode()).hexdigest()[:8]


def check_arguments(e: Expr) -> None:
    """Raise ArgumentError unless every argument `e` reads has a C identifier for a name, and each
    name one kind."""
    kinds: dict[str, type[Expr]] = {}
    for x in arguments(e):
        if not isinstance(x.name, str) or not NAME.fullmatch(x.name):
            raise ArgumentError("epilogue argument", x.name, "must be a C identifier")
        if kinds.setdefault(x.name, type(x)) is not type(x):
            raise ArgumentError("epilogue argument", x.name, "is used as two kinds of argument")


def to_json(e: Expr) -> Any:
    """The name `e` has, or the expression as nested lists: `["*", "acc", ["scalar", "alpha"]]`."""
    return name_of(e) or _to_lists(e)


def from_json(data: Any) -> Expr:
    """The inverse of `to_json`. Raises ArgumentError naming the part that is no expression."""
    if isinstance(data, str) and data in EPILOGUES:
        return EPILOGUES[data]
    return _from_lists(data)


ARGUMENTS: dict[str, type[Argument]] = {
    "scalar": Scalar,
    "device_scalar": DeviceScalar,
    "per_column": PerColumn,
    "per_row": PerRow,
}
OPERATORS, FUNCTIONS = get_args(Op), get_args(Function)


def _to_lists(e: Expr) -> Any:
    match e:
        case Const(value):
            return value
        case BinOp(op, lhs, rhs):
            return [op, _to_lists(lhs), _to_lists(rhs)]
        case Call(function, args):
            return [function, *map(_to_lists, args)]
        case Argument(name):
            kind = next(kind for kind, cls in ARGUMENTS.items() if isinstance(e, cls))
            return [kind, name]
    return "acc"


def _from_lists(data: Any) -> Expr:
    match data:
        case "acc":
            return acc
        case bool():
            pass
        case int() | float():
            return Const(float(data))
        case [str(kind), str(name)] if kind in ARGUMENTS and NAME.fullmatch(name):
            return ARGUMENTS[kind](name)
        case [str(op), lhs, rhs] if op in OPERATORS:
            return BinOp(op, _from_lists(lhs), _from_lists(rhs))  # type: ignore[arg-type]
        case [str(function), *args] if function in FUNCTIONS:
            return Call(function, tuple(map(_from_lists, args)))  # type: ignore[arg-type]
    allowed = f"must be one of {', '.join(EPILOGUES)}, or an expression as nested lists"
    raise ArgumentError("epilogue", data, allowed)
