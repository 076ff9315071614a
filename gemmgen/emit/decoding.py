"""How codes of 4 and 8 bits become numbers, in C: see gemmgen.ir.codings."""

from __future__ import annotations

from typing import NamedTuple

from ..ir.codings import REGISTERS, WORD, Coding, Lookup, Sizes, Term
from ..ir.decoding import HALVES
from ..ir.nodes import Decode, ReadCodes
from ..ir.packed import Form


def unscaled(form: Form) -> tuple[str, ...]:
    """What each register that a `word` has codes of is before it is scaled."""
    code = _halves(form)
    return tuple(_of(code, i) for i in range(code.registers))


def masked(form: Form) -> tuple[str, ...]:
    """The same of integers: what is moved, its mask, and what is set besides."""
    return tuple(_masked(form, 0xFF))


def signed(form: Form) -> tuple[tuple[str, str], ...]:
    """Of integers with more bits than a number has room for beside what is set: the same of those that it has room for, and of the sign, the first."""
    return tuple(zip(_masked(form, 0x7F), _masked(form, 0x80), strict=True))


def _masked(form: Form, bits: int) -> list[str]:
    """bits: of a code."""
    code = _halves(form)
    terms = [term for i in range(code.registers) for term in code.terms(i)]
    masks = [hexadecimal(x.mask & bits * 0x10001) for x in terms]
    return [
        f"{_moved(x)}, {mask}, {twice(code.magic)}" for x, mask in zip(terms, masks, strict=True)
    ]


def merged(form: Form) -> tuple[str, ...]:
    """What `unscaled` says where nothing follows: the last bits, what is moved and its mask, and the others. An instruction of its own: what operators make of
    registers a compiler may put behind the fence before wgmma."""
    found = []
    for i in range(_halves(form).registers):
        *others, last = _halves(form).terms(i)
        rest = " | ".join(map(_bits, others)) or "0"
        found.append(f"{_moved(last)}, {hexadecimal(last.mask)}, {rest}")
    return tuple(found)


def zero_code(form: Form) -> str:
    """The code of zero in both halves where no other is stored."""
    code = _halves(form)
    return twice(code.magic + code.zero)


def record_step(form: Form) -> str:
    """1 of a record where it belongs in a number."""
    return hexadecimal(_record_step(form))


def exponent_step(form: Form) -> str:
    """The same in both halves."""
    return twice(_record_step(form))


def exponent_least(form: Form) -> str:
    """What an exponent's field is greater by than its record: a number lacks 2^`Coding.factor`, and is left at less by 2^`Form.left`."""
    bias = 1 - form.to.min_exponent - form.record_bias
    return twice((_halves(form).factor - form.left + bias) * _exponent(form))


def power(form: Form) -> str:
    """What numbers lack, in both halves."""
    return twice((1 - form.to.min_exponent + _halves(form).factor) * _exponent(form))


def sizes(form: Form) -> tuple[str, str]:
    """Of the least shift, the eight sizes of E2M1 in bytes, in two words."""
    return _two_words(_eights(form).sizes)


def size_steps(form: Form) -> tuple[str, str]:
    """1 in the exponent of each that has one."""
    eights = _eights(form)
    return _two_words(tuple(eights.exponent * (x > 0) for x in eights.sizes))


def signed_sizes(form: Form, word: str) -> tuple[tuple[str, str], ...]:
    """Of `word`, for each register of a row: in bytes the signs of its codes, as 1, and their other bits."""
    assert isinstance(form.coding, Sizes)
    places = form.coding.places
    return tuple((_byte_bits(word, sign, 1), _byte_bits(word, least, 7)) for sign, least in places)


def _byte_bits(word: str, at: int, mask: int) -> str:
    held = f"({word} >> {at})" if at else word
    return f"{held} & {hexadecimal(mask * 0x01010101)}"


def negative(form: Form) -> str:
    """What a sign adds to a number of `signed_sizes`."""
    assert isinstance(form.coding, Sizes)
    return hexadecimal(form.coding.negative)


def _two_words(octets: tuple[int, ...]) -> tuple[str, str]:
    first, second = (int.from_bytes(bytes(octets[i : i + 4]), "little") for i in (0, 4))
    return hexadecimal(first), hexadecimal(second)


def _eights(form: Form) -> Lookup:
    assert isinstance(form.coding, Lookup)
    return form.coding


def _halves(form: Form) -> Coding:
    assert isinstance(form.coding, Coding)
    return form.coding


def _exponent(form: Form) -> int:
    return 1 << form.to.significand - 1


def _record_step(form: Form) -> int:
    return _exponent(form) >> form.record_bits


def twice(half: int) -> str:
    return hexadecimal(half * 0x10001)


def hexadecimal(x: int) -> str:
    return f"0x{x:08X}"


def _of(code: Coding, register: int) -> str:
    terms = [_bits(x) for x in code.terms(register)]
    return " | ".join([*terms, *[twice(code.magic)] * bool(code.magic)])


def _bits(term: Term) -> str:
    return f"({_held(term)} & {hexadecimal(term.mask)})"


def _held(term: Term) -> str:
    return f"({_moved(term)})" if term.shift else _moved(term)


def _moved(term: Term) -> str:
    if not term.shift:
        return "word"
    far, way, back = abs(term.shift), "<<", ">>"
    if term.shift > 0:
        way, back = back, way
    return f"word {way} {far}{f' | word {back} {WORD - far}' * term.turned}"


class Decoding(NamedTuple):
    """codes_bytes: of a block. words: registers of records, of which `fours` are read four at once. steps: of wgmma in half a K block, and first,
    which it begins with; the same of words of codes that are whole or half a step: `half` of them, from `start` on."""

    codes_bytes: int
    words: int
    fours: int
    steps: int
    first: int
    half: int
    start: int


def decoding(s: ReadCodes | Decode) -> Decoding:
    words, steps, which = s.form.pair_bytes // 4, s.form.steps // HALVES, getattr(s, "half", 0)
    half = s.form.words // HALVES
    return Decoding(
        codes_bytes=s.form.codes_bytes,
        words=words,
        fours=words // 4 * 4,
        steps=steps,
        first=steps * which,
        half=half,
        start=half * which,
    )


def four(registers: str, step: int) -> str:
    """Those of a step."""
    return ", ".join(f"{registers}[{4 * step + i}]" for i in range(REGISTERS))


# What templates call.
SPELLED = (
    *(decoding, four, unscaled, masked, merged, signed, zero_code, power),
    *(record_step, exponent_step, exponent_least, sizes, size_steps, signed_sizes, negative),
)
