"""Arithmetic of two FP16 or BF16 numbers in a register, each result rounded once (PTX ISA, half precision instructions)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import convert
from .errors import UnsupportedInstruction
from .group import Group
from .program import Op, Scope
from .syntax import Instruction

KINDS = ("f16x2", "bf16x2")
NAN = np.uint16(0x7FFF)  # what they return
PLAIN = {"rn"}  # besides the type: to nearest even, subnormals kept


def arithmetic(i: Instruction, s: Scope) -> Op:
    """add, sub, mul and fma, to nearest even. Other roundings, .ftz, .sat and .relu are not taken."""
    name, kind = i.parts[0], i.parts[-1]
    if name not in EXACT or {*i.parts[1:-1]} - PLAIN:
        raise UnsupportedInstruction(str(i))
    sources = [s.src(o, "b32") for o in i.operands[1:]]
    d = s.dst(i.operands[0], "b32")
    widen, narrow = WIDE[kind], NARROW[kind]

    def op(g: Group) -> None:
        halves = [widen(g.R[x].view(np.uint16)) for x in sources]
        with np.errstate(invalid="ignore", over="ignore"):
            value, error = EXACT[name](*halves)
            codes = narrow(value, error)
        codes = np.where(np.isnan(value), NAN, codes).astype(np.uint16)
        np.copyto(g.R[d], codes.view(np.uint32), where=g.where)

    return op


def _sum(a: Any, b: Any) -> tuple[Any, Any]:
    """In FP64, and what is missing to the exact sum (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _product(a: Any, b: Any) -> tuple[Any, Any]:
    return a * b, np.zeros_like(a)  # 22 bits at most


EXACT: Mapping[str, Callable[..., tuple[Any, Any]]] = {
    "add": _sum,
    "sub": lambda a, b: _sum(a, -b),
    "mul": _product,
    "fma": lambda a, b, c: _sum(a * b, c),
}


def _bf16(codes: Any) -> Any:
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def _to_odd(value: Any, error: Any) -> Any:
    """FP64 -> FP32, the last bit set where something is cut off: so it can be rounded once more."""
    near = value.astype(np.float32)
    rest = (value - near.astype(np.float64)) + error
    bits = near.view(np.int32)
    step = np.where((rest > 0) == (near > 0), 1, -1)
    at_zero = np.where(
        near == 0, np.where(rest < 0, np.int32(-(2**31)), np.int32(0)) | 1, bits + step
    )
    cut = (rest != 0) & np.isfinite(near) & (bits & 1 == 0)
    return np.where(cut, at_zero, bits).astype(np.int32).view(np.float32)


WIDE: Mapping[str, Callable[[Any], Any]] = {
    "f16x2": lambda codes: codes.view(np.float16).astype(np.float64),
    "bf16x2": _bf16,
}
NARROW: Mapping[str, Callable[[Any, Any], Any]] = {
    "f16x2": lambda value, error: convert.f16(_to_odd(value, error)),
    "bf16x2": lambda value, error: convert.bf16(_to_odd(value, error)),
}
