"""Integer arithmetic, logic, comparison and selection (PTX ISA, sections 9.7.1 to 9.7.8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import floats, pairs
from .errors import UnsupportedInstruction
from .group import Group
from .parse import size_of
from .program import NUMPY, Handler, Op, Scope
from .syntax import Instruction, Pair, Reg, Sink

Function = Callable[..., Any]


def kind_of(i: Instruction) -> str:
    """The instruction's type: its last dotted part."""
    return i.parts[-1]


def bits_of(kind: str) -> int:
    return 8 * size_of(kind)


def elementwise(function: Function, d: int, *sources: int) -> Op:
    """d = function(*sources) lane by lane, for what is not a ufunc."""

    def op(g: Group) -> None:
        r = g.R
        np.copyto(r[d], function(*[r[s] for s in sources]), where=g.where)

    return op


def ufunc2(function: np.ufunc, d: int, a: int, b: int) -> Op:
    def op(g: Group) -> None:
        r = g.R
        function(r[a], r[b], out=r[d], where=g.where)

    return op


def _binary(function: np.ufunc) -> Handler:
    """Wrapping arithmetic: NumPy's and PTX's agree lane by lane."""

    def decode(i: Instruction, s: Scope) -> Op:
        kind = kind_of(i)
        if kind in pairs.KINDS:
            return pairs.arithmetic(i, s)
        if kind[0] == "f" or kind.startswith("bf"):
            return floats.binary(i, s)
        if kind == "u16x2":
            return _pairwise(function, i, s)
        if len(i.parts) > 2 and i.parts[1] not in ("lo",):
            raise UnsupportedInstruction(str(i))
        d, a, b = s.dst(i.operands[0], kind), *(s.src(o, kind) for o in i.operands[1:3])
        return ufunc2(function, d, a, b)

    return decode


def _pairwise(function: np.ufunc, i: Instruction, s: Scope) -> Op:
    """On the halves of 32-bit registers."""
    d, a, b = s.dst(i.operands[0], "u32"), *(s.src(o, "u32") for o in i.operands[1:3])
    return elementwise(
        lambda x, y: function(x.view(np.uint16), y.view(np.uint16)).view(np.uint32), d, a, b
    )


def _divide(i: Instruction, s: Scope) -> Op:
    kind = kind_of(i)
    if kind[0] == "f":
        return floats.divide(i, s)
    quotient = i.parts[0] == "div"
    d, a, b = s.dst(i.operands[0], kind), *(s.src(o, kind) for o in i.operands[1:3])
    return elementwise(lambda x, y: truncating(x, y, quotient), d, a, b)


def truncating(x: Any, y: Any, quotient: bool) -> Any:
    """C division: towards zero. Division by zero gives all ones, as the hardware does."""
    safe = np.where(y == 0, np.ones_like(y), y)
    q = x // safe
    if x.dtype.kind == "i":
        q = q + ((q * safe != x) & ((x < 0) != (safe < 0)))
    r = x - q * safe
    return np.where(y == 0, ~np.zeros_like(x) if quotient else x, q if quotient else r)


def _mul(i: Instruction, s: Scope) -> Op:
    kind = kind_of(i)
    if kind in pairs.KINDS:
        return pairs.arithmetic(i, s)
    if kind[0] in "fb":
        return floats.binary(i, s)
    part = i.parts[1]
    a, b = (s.src(o, kind) for o in i.operands[1:3])
    if part == "wide":
        return _widening(i, s, kind, a, b)
    d = s.dst(i.operands[0], kind)
    if part == "lo":
        return ufunc2(np.multiply, d, a, b)
    return elementwise(lambda x, y: high_half(x, y, kind), d, a, b)


def _widening(i: Instruction, s: Scope, kind: str, a: int, b: int) -> Op:
    wide = kind[0] + str(2 * bits_of(kind))
    d = s.dst(i.operands[0], wide)
    dtype = NUMPY[wide]
    if i.parts[0] == "mad":
        c = s.src(i.operands[3], wide)
        return elementwise(lambda x, y, z: x.astype(dtype) * y.astype(dtype) + z, d, a, b, c)

    def op(g: Group) -> None:
        r = g.R
        np.multiply(r[a], r[b], out=r[d], where=g.where, dtype=dtype)

    return op


def high_half(x: Any, y: Any, kind: str) -> Any:
    bits = bits_of(kind)
    if bits < 64:
        wide = NUMPY[kind[0] + str(2 * bits)]
        return ((x.astype(wide) * y.astype(wide)) >> wide(bits)).astype(x.dtype)
    product = x.astype(object) * y.astype(object)
    mask = (1 << 64) - 1
    return np.array([int(p) >> 64 & mask for p in product], np.uint64).view(x.dtype)


def _fma(i: Instruction, s: Scope) -> Op:
    return (pairs.arithmetic if kind_of(i) in pairs.KINDS else floats.fma)(i, s)


def _mad(i: Instruction, s: Scope) -> Op:
    kind = kind_of(i)
    if kind[0] == "f":
        return floats.fma(i, s)
    a, b = (s.src(o, kind) for o in i.operands[1:3])
    if i.parts[1] == "wide":
        return _widening(i, s, kind, a, b)
    d, c = s.dst(i.operands[0], kind), s.src(i.operands[3], kind)
    if i.parts[1] == "hi":
        return elementwise(lambda x, y, z: high_half(x, y, kind) + z, d, a, b, c)
    return elementwise(lambda x, y, z: x * y + z, d, a, b, c)


def unary(function: Function) -> Handler:
    def decode(i: Instruction, s: Scope) -> Op:
        kind = kind_of(i)
        if kind[0] == "f" or kind.startswith("bf"):
            return floats.unary(i, s)
        d, a = s.dst(i.operands[0], kind), s.src(i.operands[1], kind)
        return elementwise(function, d, a)

    return decode


LOGIC: Mapping[str, Function] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _logic(i: Instruction, s: Scope) -> Op:
    kind = kind_of(i)
    a, b = (s.src(o, kind) for o in i.operands[1:3])
    d = s.dst(i.operands[0], kind)
    function = LOGIC[i.parts[0]]
    if kind == "pred" and any(isinstance(o, Reg) and o.negated for o in i.operands[1:3]):
        flips = [isinstance(o, Reg) and o.negated for o in i.operands[1:3]]
        return elementwise(lambda x, y: function(x ^ flips[0], y ^ flips[1]), d, a, b)
    assert isinstance(function, np.ufunc)
    return ufunc2(function, d, a, b)


COMPARE: Mapping[str, np.ufunc] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
UNORDERED = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}


def comparison(name: str, kind: str) -> Function:
    """The comparison `name` of two arrays; unordered forms hold if either is NaN."""
    if name in ("num", "nan"):
        return lambda x, y: (np.isnan(x) | np.isnan(y)) == (name == "nan")
    if name in UNORDERED:
        ordered = COMPARE[UNORDERED[name]]
        return lambda x, y: ordered(x, y) | np.isnan(x) | np.isnan(y)
    if name == "ne" and kind[0] == "f":  # ordered: false for NaN
        return lambda x, y: (x != y) & ~np.isnan(x) & ~np.isnan(y)
    if name not in COMPARE:
        raise UnsupportedInstruction(f"comparison .{name}")
    return COMPARE[name]


def _setp(i: Instruction, s: Scope) -> Op:
    names = [p for p in i.parts[1:-1] if p != "ftz"]
    kind = kind_of(i)
    compare = comparison(names[0], kind)
    a, b = (s.src(o, kind) for o in i.operands[1:3])
    first, second = _predicates(i.operands[0])
    if first and second is None and len(names) == 1 and isinstance(compare, np.ufunc):
        return ufunc2(compare, s.dst(first, "pred"), a, b)
    combine = LOGIC[names[1]] if len(names) > 1 else None
    extra = i.operands[3] if combine else None
    c = s.src(extra, "pred") if extra else a
    flip = isinstance(extra, Reg) and extra.negated
    slots = [s.dst(r, "pred") if r else None for r in (first, second)]

    def op(g: Group) -> None:
        r = g.R
        holds = np.asarray(compare(r[a], r[b]))
        results = [holds, ~holds]
        if combine:
            results = [combine(x, r[c] ^ flip) for x in results]
        for slot, result in zip(slots, results, strict=True):
            if slot is not None:
                np.copyto(r[slot], result, where=g.where)

    return op


def _predicates(operand: Any) -> tuple[Reg | None, Reg | None]:
    if isinstance(operand, Pair):
        return operand.first, operand.second
    return (None, None) if isinstance(operand, Sink) else (operand, None)


def _selp(i: Instruction, s: Scope) -> Op:
    kind = kind_of(i)
    d, (a, b) = s.dst(i.operands[0], kind), (s.src(o, kind) for o in i.operands[1:3])
    p = s.src(i.operands[3], "pred")
    if isinstance(i.operands[3], Reg) and i.operands[3].negated:
        a, b = b, a
    return elementwise(lambda x, y, z: np.where(z, x, y), d, a, b, p)


HANDLERS: Mapping[str, Handler] = {
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "min": _binary(np.minimum),
    "max": _binary(np.maximum),
    "mul": _mul,
    "mad": _mad,
    "fma": _fma,
    "div": _divide,
    "rem": _divide,
    "neg": unary(lambda x: -x),
    "abs": unary(np.abs),
    "not": unary(np.invert),
    "cnot": unary(lambda x: (x == 0).astype(x.dtype)),
    **dict.fromkeys(LOGIC, _logic),
    "setp": _setp,
    "selp": _selp,
}
