"""The epilogue library. A new elementwise epilogue is one line in EPILOGUES."""

from __future__ import annotations

import hashlib
import re
import sys
from typing import Any

from .activations import ALPHA as ALPHA
from .activations import GATES, clamp, clamped, divide, gelu, gelu_tanh, relu, silu
from .activations import LIMIT as LIMIT
from .errors import ArgumentError
from .ir.dtypes import BF16, DTYPES, F16, F32, DType
from .ir.expr import (
    ACC,
    ELEMENTS,
    FUNCTIONS,
    MOST_DEPTH,
    OPERATORS,
    Acc,
    Argument,
    BinOp,
    Call,
    Const,
    DeviceScalar,
    Expr,
    InWindow,
    OfPair,
    OfRows,
    PerColumn,
    PerElement,
    PerRow,
    RowBound,
    Scalar,
    arguments,
    fold,
    lift,
    parts,
)
from .ir.row_sums import check_rows

__all__ = [  # what an expression is written with
    "Call",
    "DeviceScalar",
    "EPILOGUES",
    "Expr",
    "PerColumn",
    "PerElement",
    "PerRow",
    "Scalar",
    "acc",
    "clamp",
    "divide",
    "gate",
    "gelu",
    "gelu_tanh",
    "lift",
    "mqa_logits",
    "relu",
    "residual",
    "silu",
    "swiglu",
    "swiglu_clamped",
    "up",
]

acc = ACC
LONGEST = 64  # characters of an argument's name, which becomes part of C identifiers
NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{LONGEST - 1}}}")


def residual(dtype: DType = BF16) -> Expr:
    """The element of the tensor "c" at the accumulator's row and column."""
    return PerElement("c", dtype)


def gate(x: Expr) -> Expr:
    """`x` in the even column of each pair of neighbours. D has half the columns of what `x` is made of."""
    return OfPair(x, 0)


def up(x: Expr) -> Expr:
    """`x` in the odd column of each pair of neighbours."""
    return OfPair(x, 1)


def swiglu(x: Expr) -> Expr:
    """silu(x[:, 0::2]) * x[:, 1::2]."""
    return GATES["swiglu"](gate(x), up(x))


def swiglu_clamped(x: Expr, alpha: float = ALPHA, limit: float = LIMIT) -> Expr:
    """g * sigmoid(alpha * g) * (u + 1), g = min(x[:, 0::2], limit), u = x[:, 1::2] within +-limit."""
    return clamped(gate(x), up(x), alpha, limit)


def paired_name(name: str, biased: bool = False) -> str:
    """Of GATES' `name` over pairs of columns."""
    return "bias_" * biased + name


def gated_name(name: str, biased: bool = False) -> str:
    """Of GATES' `name` over another GEMM's result, gate's, and the columns of up's."""
    return "bias_" * biased + ("gated" if name == "swiglu" else f"gated_{name}")


def _of_gates() -> dict[str, Expr]:
    found: dict[str, Expr] = {}
    for biased, x in ((False, acc), (True, acc + PerColumn("bias"))):
        for name, of in GATES.items():
            found[paired_name(name, biased)] = of(gate(x), up(x))
            found[gated_name(name, biased)] = of(residual(), x)
    return found


def mqa_logits(heads: int, *, from_first: bool = False) -> Expr:
    """The scores of an indexer: column_scale times the sum over each `heads` neighbouring rows of weights * relu(acc), in the window
    of each row of D, which has one for so many of the product's. from_first: windows begin at the first column."""
    scores = OfRows(relu(acc) * PerRow("weights"), heads) * PerColumn("column_scale")
    first = None if from_first else RowBound("window_first", "first")
    return InWindow(scores, first, RowBound("window_end", "end"))


EPILOGUES: dict[str, Expr] = {
    "none": acc,
    "alpha": acc * Scalar("alpha"),
    "bias": acc + PerColumn("bias"),
    "relu": relu(acc),
    "silu": silu(acc),
    "bias_relu": relu(acc + PerColumn("bias")),
    "bias_silu": silu(acc + PerColumn("bias")),
    "gelu": gelu(acc),
    "gelu_tanh": gelu_tanh(acc),
    "bias_gelu": gelu(acc + PerColumn("bias")),
    "bias_gelu_tanh": gelu_tanh(acc + PerColumn("bias")),
    "clamp": clamp(acc, Scalar("low"), Scalar("high")),
    "residual": acc + residual(),
    "residual_f16": acc + residual(F16),
    "residual_f32": acc + residual(F32),
    "bias_residual": acc + PerColumn("bias") + residual(),
    "alpha_beta": Scalar("alpha") * acc + Scalar("beta") * residual(),
    "scaled": acc * PerRow("row_scale") * PerColumn("column_scale"),
    **_of_gates(),
    "pair_sum": gate(acc) + up(acc),
    "scaled_swiglu": swiglu(acc * PerRow("row_scale") * PerColumn("column_scale")),
    "tensor_scaled": acc * (DeviceScalar("scale_a") * DeviceScalar("scale_b")),
}


def name_of(e: Expr) -> str | None:
    """The name `e` has in EPILOGUES, or None."""
    return next((name for name, known in EPILOGUES.items() if known == e), None)


def label_of(e: Expr) -> str:
    """A C-identifier-safe label: the name, or a digest of an expression that has none."""
    return name_of(e) or "epilogue_" + hashlib.sha256(repr(e).encode()).hexdigest()[:8]


def check_arguments(e: Expr) -> None:
    """Raise ArgumentError unless every argument `e` reads has a C identifier for a name, each name
    one kind and dtype; and unless, where columns are paired, whatever differs between columns is in
    a pair; and unless rows are summed once, in windows, and whatever differs between rows is in that sum."""
    _check_pairs(e, paired=fold(e) > 1, inside=False)
    check_rows(e)
    known: dict[str, Argument] = {}
    for x in arguments(e):
        if not isinstance(x.name, str) or not NAME.fullmatch(x.name):
            allowed = f"must be a C identifier of at most {LONGEST} characters"
            raise ArgumentError("epilogue argument", x.name, allowed)
        if known.setdefault(x.name, x) != x:
            raise ArgumentError("epilogue argument", x.name, "is used as two kinds of argument")


def _check_pairs(e: Expr, *, paired: bool, inside: bool) -> None:
    """inside: `e` is part of what is taken of a pair."""
    if isinstance(e, OfPair):
        if inside:
            raise ArgumentError(
                "epilogue", repr(e), "takes a column of a pair of a column of a pair"
            )
        inside = True
    if paired and not inside and isinstance(e, Acc | PerColumn | PerElement):
        raise ArgumentError("epilogue", repr(e), "must be in gate() or up(), as other columns are")
    for x in parts(e):
        _check_pairs(x, paired=paired, inside=inside)


def to_json(e: Expr) -> Any:
    """The name `e` has, or the expression as nested lists: `["*", "acc", ["scalar", "alpha"]]`."""
    return name_of(e) or _to_lists(e)


def from_json(data: Any) -> Expr:
    """The inverse of `to_json`. Raises ArgumentError naming the part that is no expression."""
    if isinstance(data, str) and data in EPILOGUES:
        return EPILOGUES[data]
    return _from_lists(data, MOST_DEPTH)


def named(e: Expr | str) -> Expr:
    """`e`, or the expression of that name here. Raises ArgumentError."""
    return from_json(e) if isinstance(e, str) else e


ARGUMENTS: dict[str, type[Argument]] = {
    "scalar": Scalar,
    "device_scalar": DeviceScalar,
    "per_column": PerColumn,
    "per_row": PerRow,
}
PAIR = ("even", "odd")


def _to_lists(e: Expr) -> Any:
    match e:
        case Const(value):
            return value
        case BinOp(op, lhs, rhs):
            return [op, _to_lists(lhs), _to_lists(rhs)]
        case Call(function, args):
            return [function, *map(_to_lists, args)]
        case OfPair(value, which):
            return [PAIR[which], _to_lists(value)]
        case OfRows(value, rows):
            return ["sum_rows", rows, _to_lists(value)]
        case InWindow(value, first, end):
            return ["window", _to_lists(value), *(x.name for x in (first, end) if x)]
        case PerElement(name, dtype):
            return ["per_element", name, dtype.name]
        case Argument(name):
            kind = next(kind for kind, cls in ARGUMENTS.items() if isinstance(e, cls))
            return [kind, name]
    return "acc"


def _from_lists(data: Any, room: int) -> Expr:
    """room: how much deeper it may nest."""
    if not room:
        raise ArgumentError("epilogue", data, f"must nest at most {MOST_DEPTH} deep")
    match data:
        case "acc":
            return acc
        case bool():
            pass
        case int() | float() if abs(data) <= sys.float_info.max:
            return Const(float(data))
        case [str(kind), str(name)] if kind in ARGUMENTS and NAME.fullmatch(name):
            return ARGUMENTS[kind](name)
        case ["per_element", str(name), str(dtype)] if NAME.fullmatch(name):
            return PerElement(name, _element_dtype(name, dtype))
        case [str(column), value] if column in PAIR:
            return OfPair(_from_lists(value, room - 1), PAIR.index(column))  # type: ignore[arg-type]
        case ["sum_rows", int(rows), value]:
            return OfRows(_from_lists(value, room - 1), rows)
        case ["window", value, *firsts, str(end)] if [type(x) for x in firsts] in ([], [str]):
            first = RowBound(firsts[0], "first") if firsts else None
            return InWindow(_from_lists(value, room - 1), first, RowBound(end, "end"))
        case [str(op), lhs, rhs] if op in OPERATORS:
            return BinOp(op, _from_lists(lhs, room - 1), _from_lists(rhs, room - 1))  # type: ignore[arg-type]
        case [str(function), *args] if function in FUNCTIONS:
            return Call(function, tuple(_from_lists(x, room - 1) for x in args))  # type: ignore[arg-type]
    allowed = f"must be one of {', '.join(EPILOGUES)}, or an expression as nested lists"
    raise ArgumentError("epilogue", data, allowed)


def _element_dtype(argument: str, name: str) -> DType:
    if name not in {t.name for t in ELEMENTS}:
        allowed = f"must be one of {', '.join(t.name for t in ELEMENTS)}"
        raise ArgumentError(f"dtype of {argument}", name, allowed)
    return DTYPES[name]
