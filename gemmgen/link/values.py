"""Values of expressions in a normal form: what is equal as integers are is equal as tuples are.

An integer, a name, a sum ("sum", constant, frozenset of (value, coefficient)), or a tuple that says what it is:
sums of integers are put in order, since where an address is counted from is no one's business; sums and products
of floats are left as they stand, since each order rounds differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .errors import Unreadable

Value = Any

FLOAT_CALLS = {
    *("__expf", "tanhf", "erff", "__fdividef", "fmaxf", "fminf", "fabsf", "__fdiv_rn"),
    *("__uint_as_float", "__shfl_xor_sync"),
}
LETTERS = {"r": "uint32_t", "f": "float", "l": "uint64_t", "h": "uint16_t"}
BITS = {"int": 31, "uint32_t": 32, "uint64_t": 64, "uint16_t": 16, "bool": 1}
WIDTHS = {"int": 0, "uint32_t": 1, "long long": 2, "uint64_t": 3}
UNSIGNED = {"ring.phase", "next.phase"}
FOLDED = {
    "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}


def kind(v: Value) -> str:
    """The C type of a value, as far as the emitted text needs it."""
    if isinstance(v, int):
        return "int"
    if isinstance(v, str):
        return "uint32_t" if v in UNSIGNED else "int"
    head = v[0]
    if head == "sum":
        return widest(kind(x) for x, _ in v[2])
    if head in ("cast", "element", "typed"):
        return str(v[1])
    if head == "out":
        return LETTERS.get(v[1], "uint32_t")
    if head in ("float", "f"):
        return "float"
    if head == "call":
        return "float" if v[1] in FLOAT_CALLS else "int"
    if head in ("opaque", "neg", "given"):
        return kind(v[1])
    if head in ("&", "|", "^", "*", "/", "%"):
        return widest((kind(v[1]), kind(v[2])))
    return kind(v[1]) if head in ("<<", ">>") else "int"


def widest(kinds: Iterable[str]) -> str:
    """What C makes of operands of these types."""
    best = "int"
    for of in kinds:
        if of[-1] == "*":
            return of
        if WIDTHS.get(of, 0) > WIDTHS[best]:
            best = of
    return best


def cast(to: str, v: Value) -> Value:
    """`v` as a `to`; itself where it is one."""
    to = to.replace(" &", "")
    if to == "auto" or to.endswith("*") or kind(v) == to:
        return v
    if isinstance(v, int) and v >= 0 and v >> BITS.get(to, 0) == 0:
        return v
    return "cast", to, v


def plain(v: Value) -> Value:
    """As a 32-bit register holds it, signed or not; of what stands in brackets and braces each."""
    if isinstance(v, tuple) and v[0] in ("mem", "list"):
        return v[0], tuple(map(plain, v[1]))
    words = ("int", "uint32_t")
    casts = isinstance(v, tuple) and v[0] == "cast" and v[1] in words and kind(v[2]) in words
    return plain(v[2]) if casts else v


def terms(v: Value) -> tuple[int, Mapping[Value, int]]:
    if isinstance(v, int):
        return v, {}
    if isinstance(v, tuple) and v[0] == "sum":
        return v[1], dict(v[2])
    return 0, {v: 1}


def total(constant: int, found: Mapping[Value, int]) -> Value:
    left = [(x, c) for x, c in found.items() if c]
    if not left:
        return constant
    if constant == 0 and len(left) == 1 and left[0][1] == 1:
        return left[0][0]
    return "sum", constant, frozenset(left)


def add(a: Value, b: Value, sign: int = 1) -> Value:
    if isinstance(a, int) and isinstance(b, int):
        return a + sign * b
    (x, mine), (y, others) = terms(a), terms(b)
    found = dict(mine)
    for v, c in others.items():
        found[v] = found.get(v, 0) + sign * c
    return total(x + sign * y, found)


def binary(op: str, a: Value, b: Value) -> Value:
    if isinstance(a, int) and isinstance(b, int) and op in FOLDED:
        if op in "/%" and b == 0:
            raise Unreadable("a division by 0")
        return FOLDED[op](a, b)
    if op in ("+", "-", "*", "/") and (_float(a) or _float(b)):
        return "f", op, a, b
    if op in ("+", "-"):
        return add(a, b, 1 if op == "+" else -1)
    if op == "*":
        number, other = (a, b) if isinstance(a, int) else (b, a)
        if isinstance(number, int):
            constant, found = terms(other)
            return total(constant * number, {v: c * number for v, c in found.items()})
    if op == "/" and b == 1:
        return a
    if op in ("&", "^", "|") and 0 in (a, b):
        return 0 if op == "&" else next((x for x in (a, b) if x != 0), 0)
    return op, a, b


def _float(v: Value) -> bool:
    """Whether `kind` is float, which no sum is."""
    return isinstance(v, tuple) and v[0] != "sum" and kind(v) == "float"


def unary(op: str, a: Value) -> Value:
    if op == "-":
        return ("neg", a) if kind(a) == "float" else add(0, a, -1)
    if op == "~" and isinstance(a, int):
        return ~a
    return a if op == "+" else ("un", op, a)
