"""Shifts, bit fields, byte permutation, counting bits (PTX ISA, logic and shift instructions)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .alu import bits_of, elementwise, kind_of, ufunc2, unary
from .errors import UnsupportedInstruction
from .program import NUMPY, Handler, Op, Scope
from .syntax import Imm, Instruction

Function = Callable[..., Any]


def _shift(i: Instruction, s: Scope) -> Op:
    """Amounts beyond the width give zero, or the sign (PTX ISA, shl and shr)."""
    kind = kind_of(i)
    bits = bits_of(kind)
    d, a, b = s.dst(i.operands[0], kind), s.src(i.operands[1], kind), s.src(i.operands[2], "u32")
    left = i.parts[0] == "shl"
    function = np.left_shift if left else np.right_shift
    if isinstance(i.operands[2], Imm) and 0 <= i.operands[2].bits < bits:
        return ufunc2(function, d, a, s.src(i.operands[2], kind))
    signed = kind[0] == "s"

    def shifted(x: Any, n: Any) -> Any:
        clamped = function(x, np.minimum(n, bits - 1).astype(x.dtype))
        return clamped if signed and not left else np.where(n < bits, clamped, x.dtype.type(0))

    return elementwise(shifted, d, a, b)


def _funnel(i: Instruction, s: Scope) -> Op:
    left, clamp = i.parts[1] == "l", i.parts[2] == "clamp"
    d, (a, b, n) = s.dst(i.operands[0], "u32"), (s.src(o, "u32") for o in i.operands[1:4])

    def funnel(low: Any, high: Any, amount: Any) -> Any:
        both = high.astype(np.uint64) << np.uint64(32) | low
        count = (np.minimum(amount, 32) if clamp else amount & 31).astype(np.uint64)
        moved = (both << count) >> np.uint64(32) if left else both >> count
        return np.where(count < 64, moved, 0).astype(np.uint32)

    return elementwise(funnel, d, a, b, n)


def _lop3(i: Instruction, s: Scope) -> Op:
    d, (a, b, c) = s.dst(i.operands[0], "u32"), (s.src(o, "u32") for o in i.operands[1:4])
    assert isinstance(i.operands[4], Imm)
    table = i.operands[4].bits

    def lop3(x: Any, y: Any, z: Any) -> Any:
        result = np.zeros_like(x)
        for k in range(8):
            if table >> k & 1:
                term = (x if k & 4 else ~x) & (y if k & 2 else ~y) & (z if k & 1 else ~z)
                result |= term
        return result

    return elementwise(lop3, d, a, b, c)


def _bfe(i: Instruction, s: Scope) -> Op:
    """Bit field extract; a signed field is extended by its last bit (PTX ISA, bfe)."""
    kind = kind_of(i)
    bits, signed = bits_of(kind), kind[0] == "s"
    d, a = s.dst(i.operands[0], kind), s.src(i.operands[1], kind)
    p, n = (s.src(o, "u32") for o in i.operands[2:4])

    def extract(x: Any, at: Any, count: Any) -> Any:
        at, count = (v.astype(np.int64) & 0xFF for v in (at, count))
        return np.array(
            [
                _field(int(v), int(b), int(c), bits, signed)
                for v, b, c in zip(x, at, count, strict=True)
            ],
            x.dtype,
        )

    return elementwise(extract, d, a, p, n)


def _field(value: int, at: int, count: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    field = value >> at & (1 << count) - 1 if count else 0
    if signed and count:
        sign = value >> min(at + count - 1, bits - 1) & 1
        width = min(count, max(bits - at, 0))
        field -= sign << width
    return field


def _bfi(i: Instruction, s: Scope) -> Op:
    """d = b with its `length` bits from `start` on replaced by the low bits of a."""
    kind = kind_of(i)
    bits, dtype = bits_of(kind), NUMPY[kind]
    d, (a, b) = s.dst(i.operands[0], kind), (s.src(o, kind) for o in i.operands[1:3])
    p, n = (s.src(o, "u32") for o in i.operands[3:5])

    def insert(x: Any, y: Any, at: Any, count: Any) -> Any:
        at = np.minimum(at & 0xFF, bits).astype(np.uint64)
        count = np.minimum(count & 0xFF, bits).astype(np.uint64)
        one = np.uint64(1)
        ones = np.where(count < 64, (one << count % 64) - one, ~np.uint64(0))
        mask = np.where(at < 64, ones << at % 64, 0).astype(dtype)
        return y & ~mask | (x.astype(np.uint64) << at % 64).astype(dtype) & mask

    return elementwise(insert, d, a, b, p, n)


def _prmt(i: Instruction, s: Scope) -> Op:
    """Byte permute, default mode: selector bit 3 replicates the sign (PTX ISA, prmt)."""
    if len(i.parts) > 2:
        raise UnsupportedInstruction(str(i))
    d, (a, b, c) = s.dst(i.operands[0], "u32"), (s.src(o, "u32") for o in i.operands[1:4])

    def permute(x: Any, y: Any, selector: Any) -> Any:
        both = y.astype(np.uint64) << np.uint64(32) | x
        result = np.zeros_like(x)
        for k in range(4):
            pick = selector >> np.uint32(4 * k) & np.uint32(0xF)
            byte = (both >> (pick & np.uint32(7)).astype(np.uint64) * np.uint64(8)).astype(
                np.uint32
            )
            byte &= np.uint32(0xFF)
            sign = np.where(byte & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
            result |= np.where(pick & np.uint32(8), sign, byte) << np.uint32(8 * k)
        return result

    return elementwise(permute, d, a, b, c)


def _find(i: Instruction, s: Scope) -> Op:
    """The highest 1 of an unsigned number, or how far left it may be shifted; all ones of 0 (PTX ISA, bfind)."""
    if kind_of(i) != "u32":
        raise UnsupportedInstruction(str(i))
    shifts, (d, a) = (
        "shiftamt" in i.parts,
        (s.dst(i.operands[0], "u32"), s.src(i.operands[1], "u32")),
    )

    def find(x: Any) -> Any:
        at = _bit_length(x) - 1
        return np.where(x == 0, -1, 31 - at if shifts else at).astype(np.uint32)

    return elementwise(find, d, a)


def _counting(function: Function) -> Handler:
    """popc, clz: a 32-bit result whatever the operand's type."""

    def decode(i: Instruction, s: Scope) -> Op:
        kind = kind_of(i)
        d, a = s.dst(i.operands[0], "u32"), s.src(i.operands[1], kind)
        return elementwise(lambda x: function(x, bits_of(kind)).astype(np.uint32), d, a)

    return decode


def _leading_zeros(x: Any, bits: int) -> Any:
    return bits - _bit_length(x)


def _bit_length(x: Any) -> Any:
    return np.array([int(v).bit_length() for v in x.ravel()], np.int64)


def _ones(x: Any, bits: int) -> Any:
    return np.array([int(v).bit_count() for v in x.view(f"u{x.itemsize}")], np.int64)


def _reverse(x: Any) -> Any:
    bits = 8 * x.itemsize
    return np.array([int(f"{int(v):0{bits}b}"[::-1], 2) for v in x], x.dtype)


HANDLERS: Mapping[str, Handler] = {
    "brev": unary(_reverse),
    "popc": _counting(_ones),
    "clz": _counting(_leading_zeros),
    "bfind": _find,
    "shl": _shift,
    "shr": _shift,
    "shf": _funnel,
    "lop3": _lop3,
    "bfe": _bfe,
    "bfi": _bfi,
    "prmt": _prmt,
}
