"""How registers of `wgmma`'s A are made of a word of codes of 4 or 8 bits, and where in it each code lies: see `packed`.

Thread t of a warpgroup holds four registers of each step of 32 bytes of K: register i has row 16 w + g + 8 (i % 2) and the four bytes from 4 c + 16 (i / 2)
on (w = t / 32, g = t % 32 / 4, c = t % 4; PTX ISA, "Register Fragments", matrix A).

- Of 16 bits, a word is a step: its halves are the two columns of a register, and each half has the four registers' codes. Of codes of 8 bits it is half a
  step: registers 0 and 1, the next word registers 2 and 3.
- Of 8 bits, two words are a step: one has registers 0 and 2, of row g, the other 1 and 3, of row g + 8. A register's four bytes are looked up in eight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import IRError
from .dtypes import BF16, E4M3, F16, DType

INT4, E2M1, INT8, FP8 = "int4", "e2m1", "int8", "e4m3"  # elements
ZERO = 8  # the code of INT4 that is 0 where no others are stored
# Of E2M1, by the three bits of an exponent and a fraction (OCP Microscaling Formats 1.0, section 5.3.3); the fourth is the sign.
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
STEP = 16  # of K, of 16-bit operands
WORD, HALF = 32, 16  # bits
REGISTERS = 4
READ_WORDS = 4  # of a thread, 16 bytes
THREADS = 128
BITS = {INT4: 4, E2M1: 4, INT8: 8, FP8: 8}  # of a code

Bits = tuple[int, ...]  # where the bits of a code are, the highest first


def _nibble(i: int) -> Bits:
    return (4 * i + 3, 4 * i + 2, 4 * i + 1, 4 * i)


def _octet(i: int) -> Bits:
    return tuple(range(8 * i + 7, 8 * i - 1, -1))


@dataclass(frozen=True, kw_only=True)
class Term:
    """Of a word moved right (left, if `shift` is negative), with what falls out coming back if it is turned, the bits of `mask`."""

    shift: int
    mask: int
    turned: bool


@dataclass(frozen=True, kw_only=True)
class Coding:
    """How a code of `element` is made a number of 16 bits.

    places: in half of a word, of each register that it has codes of; from 16 on in the other half. lands: in the number. magic: bits that are set besides.
    zero: the code of 0 where no others are stored. factor: log2 of what the number then is to be multiplied by, besides its scale; of integers it is first
    reduced by `magic` + zero, as a code.
    """

    element: str
    to: DType
    places: tuple[Bits, ...]
    lands: Bits
    magic: int = 0
    zero: int = 0
    factor: int = 0

    @property
    def registers(self) -> int:
        """Of a step, whose codes a word has."""
        return len(self.places)

    def place(self, word: int, code: int) -> tuple[int, int, Bits]:
        """Of a block's word and one of its codes: row, column, and which bits of the word."""
        read, row, c = _thread(word)
        step, part = divmod(read, REGISTERS // self.registers)
        half, held = divmod(code, self.registers)
        register = part * self.registers + held
        column = STEP * step + 2 * c + 8 * (register // 2) + half
        bits = tuple((x + HALF * half) % WORD for x in self.places[held])
        return row + 8 * (register % 2), column, bits

    def terms(self, register: int) -> tuple[Term, ...]:
        """Whose results are or-ed: the bits of a code of a word's, at their places."""
        found: dict[int, Term] = {}
        for at, to in zip(self.places[register], self.lands, strict=True):
            before = found.get(at - to, Term(shift=at - to, mask=0, turned=False))
            mask, turned = before.mask | 0x10001 << to, before.turned or at >= HALF
            found[at - to] = Term(shift=at - to, mask=mask, turned=turned)
        return tuple(found[x] for x in sorted(found))


# BF16 has eight bits of a significand and FP16 eleven: 128 + u and 1024 + u hold a code u in their last bits.
# E2M1's exponent and fraction are the last of BF16's exponent and the first of its fraction: as numbers they are 2^-126 of
# their values, subnormals too. Of four codes three take one mask each, one of a turned word, the last takes two.
# FP16's exponent and fraction lie further from its sign: 2^-14 of the values, two codes of one mask and two of two.
CODINGS = (
    Coding(element=INT4, to=BF16, places=tuple(map(_nibble, range(4))), lands=_nibble(0), magic=0x4300, zero=ZERO),
    Coding(element=INT4, to=F16, places=tuple(map(_nibble, range(4))), lands=_nibble(0), magic=0x6400, zero=ZERO),
    Coding(
        element=E2M1,
        to=BF16,
        places=((19, 12, 11, 10), (13, 6, 5, 4), (9, 2, 1, 0), (15, 8, 7, 14)),
        lands=(15, 8, 7, 6),
        factor=126,
    ),
    Coding(
        element=E2M1,
        to=F16,
        places=((13, 2, 1, 0), (14, 5, 4, 3), (12, 8, 7, 6), (15, 11, 10, 9)),
        lands=(15, 11, 10, 9),
        factor=14,
    ),
)  # fmt: skip
# BF16 has no room for the eighth bit of INT8 beside 128: it is what the other seven are less by, as 128 + u less 128 or 256. FP16 has: 1024 + u, u the code
# and 128. E4M3's exponent and fraction are BF16's last four and first three bits, 2^-120 of the value, and FP16's but for its exponent's first, 2^-8, subnormals
# too. One code of a half is in its place, the other takes two masks: a translate of these eight bits does not fit beside them.
OCTETS = (
    Coding(element=INT8, to=BF16, places=tuple(map(_octet, range(2))), lands=_octet(0), magic=0x4300),
    Coding(element=INT8, to=F16, places=tuple(map(_octet, range(2))), lands=_octet(0), magic=0x6400, zero=128),
    Coding(
        element=FP8,
        to=BF16,
        places=((15, 10, 9, 8, 7, 6, 5, 4), (11, 14, 13, 12, 3, 2, 1, 0)),
        lands=(15, 10, 9, 8, 7, 6, 5, 4),
        factor=120,
    ),
    Coding(
        element=FP8,
        to=F16,
        places=((15, 13, 12, 11, 10, 9, 8, 7), (14, 6, 5, 4, 3, 2, 1, 0)),
        lands=(15, 13, 12, 11, 10, 9, 8, 7),
        factor=8,
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """How codes of E2M1 are made E4M3, exponents and all: by the eight sizes of each row and group, since a group is as many columns as a
    step has. Seven of them are normal numbers, whose exponents are added to.

    A code's last three bits are the index, in a nibble of their own as `prmt` takes them; signs lie so that one mask, and one shift for every
    other register, puts them into bytes.
    """

    element: str
    to: DType

    def place(self, word: int, code: int) -> tuple[int, int, Bits]:
        """As `Coding.place`."""
        read, row, c = _thread(word)
        part, i = divmod(read, READ_WORDS)
        step, second = 2 * part + i // 2, i % 2
        register, byte = divmod(code, 4)
        sign = 8 * byte + (3 if register else 7)
        index = 4 * code
        bits = (sign, index + 2, index + 1, index)
        return row + 8 * second, 2 * STEP * step + 4 * c + 16 * register + byte, bits

    @property
    def exponent(self) -> int:
        """1 in a number's exponent."""
        return 1 << self.to.significand - 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the least shift, each of E2M1's as a number: 0, then normal ones."""
        return tuple(self._size(x) for x in E2M1_VALUES)

    def _size(self, x: float) -> int:
        if not x:
            return 0
        fraction, exponent = math.frexp(x)
        above = exponent - 1 + LEAST_SHIFT - self.to.min_exponent
        return int((2 * fraction - 1) * self.exponent) + (above + 1) * self.exponent


LOOKUP = Lookup(element=E2M1, to=E4M3)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How codes of INT4 are made E4M3, where scales belong to sums: a sign, and 2^-9 of a size from 0 to 8, which as E4M3 are the size's own bits,
    subnormal up to 7.

    A code is stored as a sign and three bits: the number itself from 0 on, below what it is less than -1 by. So a byte is the three bits, and with a sign
    `negative` more. Registers of low halves of bytes have their signs in the bytes' highest bits.
    """

    element: str
    to: DType

    def place(self, word: int, code: int) -> tuple[int, int, Bits]:
        """As `Coding.place`."""
        row, column, _ = LOOKUP.place(word, code)
        register, byte = divmod(code, 4)
        sign, least = self.places[register]
        return row, column, tuple(8 * byte + x for x in (sign, least + 2, least + 1, least))

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Of each register of a row: in a byte, where a code's sign and the least of its three bits are."""
        return (7, 0), (6, 3)

    @property
    def negative(self) -> int:
        """A sign, and 1."""
        return (1 << self.to.bits - 1) + 1

    @property
    def left(self) -> int:
        """log2 of what numbers are less by than codes."""
        return self.to.significand - 1 - self.to.min_exponent


SIZES = Sizes(element=INT4, to=E4M3)
AnyCoding = Coding | Lookup | Sizes
KNOWN: tuple[AnyCoding, ...] = (*CODINGS, *OCTETS, LOOKUP, SIZES)
# A scale of E4M3 is packed as 2^(x / 8 - SCALE_BIAS), x's last three bits its fraction: from 2^-9, subnormal, to 448. What numbers are then
# less by, 2^LEFT, is what keeps 448 times their factor below 2^128.
SCALE_BIAS, LEFT = 10, 7
# A group's exponent less its row's: as E4M3 0.5 * 2^-5 is the least normal number, and 6 * 2^6 the most of this size.
LEAST_SHIFT, MOST_SHIFT = -5, 6
# The same by what exponents of E8M0 do not fit into. As FP16 0.5 * 2^-23 is the least number, and 2^(1 + 14) what E2M1 is multiplied by at most.
SHIFTS = {E4M3: (LEAST_SHIFT, MOST_SHIFT), F16: (-23, 1)}


def _thread(word: int) -> tuple[int, int, int]:
    """Of a block's word: which of its thread's it is, the thread's first row, and c."""
    part, rest = divmod(word, READ_WORDS * THREADS)
    thread, i = divmod(rest, READ_WORDS)
    return part * READ_WORDS + i, 16 * (thread // 32) + thread % 32 // 4, thread % 4


def coding(element: str, to: DType) -> AnyCoding:
    """Raises IRError where there is none."""
    for x in KNOWN:
        if (x.element, x.to) == (element, to):
            return x
    raise IRError(f"no coding of {element} as {to}")
