"""How codes of 4 bits become numbers, in C: see gemmgen.ir.packed."""

from __future__ import annotations

from typing import NamedTuple

from ..ir.decoding import HALVES
from ..ir.dtypes import DType
from ..ir.nodes import Decode, ReadCodes
from ..ir.packed import CODES_BYTES, WORDS, ZERO, Coding


def numbers(code: Coding) -> tuple[str, ...]:
    """What each register of a step is before it is scaled, of a `word`."""
    return tuple(_of(code, i) for i in range(4))


def eight(code: Coding) -> str:
    """The code of zero in both halves where no other is stored."""
    return twice(code.magic + ZERO)


def exponent_step(to: DType) -> str:
    """1 in the exponent's field, in both halves."""
    return twice(1 << to.significand - 1)


def exponent_least(code: Coding) -> str:
    """What an exponent of E8M0, whose bias is BF16's, is greater by in that field: a number lacks 2^`coding.factor`."""
    return twice(code.factor << code.to.significand - 1)


def twice(half: int) -> str:
    return hexadecimal(half * 0x10001)


def hexadecimal(x: int) -> str:
    return f"0x{x:08X}"


def _of(code: Coding, register: int) -> str:
    terms = [f"{_shifted(shift)} & {hexadecimal(mask)}" for shift, mask in code.terms(register)]
    return " | ".join([*(f"({x})" for x in terms), *[twice(code.magic)] * bool(code.magic)])


def _shifted(shift: int) -> str:
    return "word" if not shift else f"(word {'>>' if shift > 0 else '<<'} {abs(shift)})"


class Decoding(NamedTuple):
    """codes_bytes: of a block. words: registers of records, of which `fours` are read four at once. steps: of wgmma in half a K block, and first,
    which it begins with. numbers: what a step's registers are before they are scaled, in C, of a `word`; eight, exponent_step, exponent_least: see the
    functions."""

    codes_bytes: int
    words: int
    fours: int
    steps: int
    first: int
    numbers: tuple[str, ...]
    eight: str
    exponent_step: str
    exponent_least: str


def decoding(s: ReadCodes | Decode) -> Decoding:
    form = s.form
    code, words, steps = form.coding, form.pair_bytes // 4, WORDS // HALVES
    return Decoding(
        codes_bytes=CODES_BYTES,
        words=words,
        fours=words // 4 * 4,
        steps=steps,
        first=steps * getattr(s, "half", 0),
        numbers=numbers(code),
        eight=eight(code),
        exponent_step=exponent_step(form.to),
        exponent_least=exponent_least(code),
    )


def four(registers: str, step: int) -> str:
    """Those of a step."""
    return ", ".join(f"{registers}[{4 * step + i}]" for i in range(4))
