"""Scalar expressions over one accumulator element. Epilogues are written in these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from ..errors import ArgumentError
from .dtypes import BF16, F32, FLOATS, DType
from .fp32 import number

Op = Literal["+", "-", "*", "/"]
Function = Literal["exp", "tanh", "erf", "divide", "max", "min"]
OPERATORS, FUNCTIONS = get_args(Op), get_args(Function)
APPROXIMATE = {
    "exp",
    "tanh",
    "erf",
    "divide",
}  # functions that FP32 hardware does not round correctly
MOST_NODES, MOST_DEPTH = 1024, 64  # of an expression: passes and C compilers walk it recursively
ROW_SUMS = (8, 16, 32, 64, 128)  # rows of an OfRows
ELEMENTS = FLOATS  # dtypes of a PerElement


@dataclass(frozen=True)
class Expr:
    """Base of all expressions; Python's arithmetic operators build `BinOp`s.

    nodes: of the tree that it stands for, each as often as it occurs; depth: the longest way down. Expressions
    that share parts can stand for trees that no memory holds, so both are bounded where nodes are made.
    """

    nodes: ClassVar[int] = 1
    depth: ClassVar[int] = 1

    def __add__(self, other: Expr | float) -> Expr:
        return BinOp("+", self, lift(other))

    def __sub__(self, other: Expr | float) -> Expr:
        return BinOp("-", self, lift(other))

    def __mul__(self, other: Expr | float) -> Expr:
        return BinOp("*", self, lift(other))

    def __truediv__(self, other: Expr | float) -> Expr:
        return BinOp("/", self, lift(other))

    def __radd__(self, other: float) -> Expr:
        return BinOp("+", lift(other), self)

    def __rsub__(self, other: float) -> Expr:
        return BinOp("-", lift(other), self)

    def __rmul__(self, other: float) -> Expr:
        return BinOp("*", lift(other), self)

    def __rtruediv__(self, other: float) -> Expr:
        return BinOp("/", lift(other), self)

    def __neg__(self) -> Expr:
        return BinOp("-", Const(0.0), self)


@dataclass(frozen=True)
class Acc(Expr):
    """The accumulator element itself (FP32)."""


ACC = Acc()


@dataclass(frozen=True)
class Const(Expr):
    """A number, rounded to FP32 in the kernel. One that FP32 has no room for is refused: it would be 0 or
    infinite there."""

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", number("Const", self.value, "must be a finite number"))


@dataclass(frozen=True)
class Argument(Expr):
    """A kernel argument, by name."""

    name: str


@dataclass(frozen=True)
class Scalar(Argument):
    """Shared by the whole output: one `float`, known when the kernel is launched."""


@dataclass(frozen=True)
class DeviceScalar(Argument):
    """Shared by the whole output: one float in device memory, read when the kernel runs."""


@dataclass(frozen=True)
class PerColumn(Argument):
    """Indexed by the output column: `const float*` of N elements."""


@dataclass(frozen=True)
class PerRow(Argument):
    """Indexed by the output row: `const float*` of M elements."""


@dataclass(frozen=True)
class InGroup(Expr):
    """`value` where the row belongs to a group (`groups[row]` is not negative), else 0."""

    value: Expr
    groups: str  # a kernel parameter, `const int*` of M elements

    def __post_init__(self) -> None:
        _measure(self)


@dataclass(frozen=True)
class OfPair(Expr):
    """`value` in the even (0) or the odd (1) column of a pair of neighbours: D then has one column for
    every two of the product's. Arguments inside are indexed by the product's columns."""

    value: Expr
    which: Literal[0, 1]

    def __post_init__(self) -> None:
        _measure(self)


@dataclass(frozen=True)
class PerElement(Argument):
    """Indexed by the output row and column: M rows of N elements of `dtype`, a stride apart. Rows begin
    at multiples of two elements: the epilogue reads pairs, and where N is odd the element after a row's
    last, whose value does not matter."""

    dtype: DType = BF16

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENTS:
            allowed = f"must be one of {', '.join(t.name for t in ELEMENTS)}"
            raise ArgumentError(f"dtype of {self.name}", str(self.dtype), allowed)


@dataclass(frozen=True)
class RowBound(Argument):
    """Indexed by the row of D: `const int*`, the column where the row's window begins, or the one after its last."""

    which: Literal["first", "end"]


@dataclass(frozen=True)
class OfRows(Expr):
    """The sum of `value` over each `rows` neighbouring rows of the product: D then has one row for so many.
    Arguments inside are indexed by the product's rows."""

    value: Expr
    rows: int

    def __post_init__(self) -> None:
        if type(self.rows) is not int or self.rows not in ROW_SUMS:
            raise ArgumentError("rows of OfRows", self.rows, f"must be one of {ROW_SUMS}")
        _measure(self)


@dataclass(frozen=True)
class InWindow(Expr):
    """`value` where first[row] <= column < end[row], both of D, else minus infinity. first: None: 0 in all rows."""

    value: Expr
    first: RowBound | None
    end: RowBound

    def __post_init__(self) -> None:
        for bound, which in ((self.first, "first"), (self.end, "end"))[self.first is None :]:
            if not isinstance(bound, RowBound) or bound.which != which:
                raise ArgumentError(f"{which} of InWindow", bound, f"must be a RowBound {which}")
        _measure(self)


# What D held before a launch that adds to it; no C identifier, so that no epilogue reads it.
BEFORE = PerElement("D before", F32)


@dataclass(frozen=True)
class BinOp(Expr):
    op: Op
    lhs: Expr
    rhs: Expr

    def __post_init__(self) -> None:
        _one_of("operator", self.op, OPERATORS)
        _measure(self)


@dataclass(frozen=True)
class Call(Expr):
    function: Function
    args: tuple[Expr, ...]

    def __post_init__(self) -> None:
        _one_of("function", self.function, FUNCTIONS)
        arity = {"max": 2, "min": 2, "divide": 2}.get(self.function, 1)
        if len(self.args) != arity:
            raise ArgumentError(self.function, len(self.args), f"takes {arity} argument(s)")
        _measure(self)


def _one_of(argument: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ArgumentError(argument, value, f"must be one of {', '.join(allowed)}")


def _measure(e: Expr) -> None:
    """Set `nodes` and `depth` of a new `e`. Raises ArgumentError if it is too large."""
    inside = parts(e)
    for x in inside:
        if not isinstance(x, Expr):
            raise ArgumentError("epilogue", x, "must be an expression")
    nodes, depth = 1 + sum(x.nodes for x in inside), 1 + max(x.depth for x in inside)
    if nodes > MOST_NODES or depth > MOST_DEPTH:
        allowed = f"must be at most {MOST_NODES} parts, nested at most {MOST_DEPTH} deep"
        raise ArgumentError("epilogue", f"{nodes} parts, {depth} deep", allowed)
    object.__setattr__(e, "nodes", nodes)  # frozen, and no fields: equality does not ask for them
    object.__setattr__(e, "depth", depth)


def lift(value: Expr | float) -> Expr:
    if isinstance(value, Expr):
        return value
    return Const(number("epilogue", value, "must be an expression or a finite number"))


def parts(e: Expr) -> tuple[Expr, ...]:
    """The expressions that `e` is made of."""
    match e:
        case BinOp(_, lhs, rhs):
            return lhs, rhs
        case InGroup(value, _) | OfPair(value, _) | OfRows(value, _):
            return (value,)
        case InWindow(value, first, end):
            return (value, end) if first is None else (value, first, end)
        case Call(_, args):
            return args
    return ()


def walk(e: Expr) -> Iterator[Expr]:
    """`e` and all that it is made of."""
    yield e
    for x in parts(e):
        yield from walk(x)


def of(e: Expr, acc: Expr) -> Expr:
    """`e` of `acc` instead of the accumulator."""
    match e:
        case Acc():
            return acc
        case BinOp(op, lhs, rhs):
            return BinOp(op, of(lhs, acc), of(rhs, acc))
        case OfPair(value, which):
            return OfPair(of(value, acc), which)
        case InGroup(value, groups):
            return InGroup(of(value, acc), groups)
        case OfRows(value, rows):
            return OfRows(of(value, acc), rows)
        case InWindow(value, first, end):
            return InWindow(of(value, acc), first, end)
        case Call(function, args):
            return Call(function, tuple(of(x, acc) for x in args))
    return e


def arguments(e: Expr) -> tuple[Argument, ...]:
    """The kernel arguments `e` reads, in first-use order."""
    if isinstance(e, Argument):
        return (e,)
    return tuple(dict.fromkeys(a for x in parts(e) for a in arguments(x)))


def functions(e: Expr) -> set[str]:
    """The names of the functions `e` calls."""
    mine = {e.function} if isinstance(e, Call) else set()
    return set(mine).union(*map(functions, parts(e)))


def calls(e: Expr, function: Function) -> int:
    """How often `e` calls that."""
    mine = isinstance(e, Call) and e.function == function
    return mine + sum(calls(x, function) for x in parts(e))


def fold(e: Expr) -> int:
    """Columns of the product per column of D: 2 if `e` pairs them."""
    return 2 if isinstance(e, OfPair) else max(map(fold, parts(e)), default=1)
