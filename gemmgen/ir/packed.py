"""Weights of 4 bits as a warpgroup reads them: where a code lies, and how registers of `wgmma`'s A are made of a word.

A block is 64 rows by 128 columns: the codes, then a record for each row and group of columns. 16 bytes of a thread are its codes for 64 of K, four
words; the 16 bytes of thread t follow those of thread t - 1, so that eight threads read 128 bytes, each bank once.

Thread t of a warpgroup holds four registers of each step of 32 bytes of K: register i has row 16 w + g + 8 (i % 2) and the four bytes from 4 c + 16 (i / 2)
on (w = t / 32, g = t % 32 / 4, c = t % 4; PTX ISA, "Register Fragments", matrix A).

- Of 16 bits, a word is a step: its halves are the two columns of a register, and each half has the four registers' codes.
- Of 8 bits, two words are a step: one has registers 0 and 2, of row g, the other 1 and 3, of row g + 8. A register's four bytes are looked up in eight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..errors import IRError
from .dtypes import BF16, E4M3, F16, DType

INT4, E2M1 = "int4", "e2m1"  # elements
E8M0 = "e8m0"  # a scale that is an exponent
E8M0_BIAS = 127
GROUPS = (32, 64, 128)  # columns that share a scale, where weights are packed
E4M3_GROUP = 16  # and where E2M1 has scales of E4M3
ZERO = 8  # the code of INT4 that is 0 where no others are stored
# Of E2M1, by the three bits of an exponent and a fraction (OCP Microscaling Formats 1.0, section 5.3.3); the fourth is the sign.
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

ROWS, COLUMNS = 64, 128
STEP = 16  # of K, of 16-bit operands
STEP_BYTES = 32  # of wgmma's K
WORD, HALF = 32, 16  # bits
REGISTERS = 4
READ_WORDS = 4  # of a thread, 16 bytes
WORDS = COLUMNS // STEP  # of a thread, of numbers of 16 bits a word for each step
THREADS = 128
CODES_BYTES = ROWS * COLUMNS // 2
PAIRS = 32  # of rows: 16 w + g and 16 w + g + 8, at 8 w + g

Bits = tuple[int, int, int, int]  # where the bits of a code are, the highest first


def _nibble(i: int) -> Bits:
    return (4 * i + 3, 4 * i + 2, 4 * i + 1, 4 * i)


@dataclass(frozen=True, kw_only=True)
class Term:
    """Of a word moved right (left, if `shift` is negative), with what falls out coming back if it is turned, the bits of `mask`."""

    shift: int
    mask: int
    turned: bool


@dataclass(frozen=True, kw_only=True)
class Coding:
    """How a code of `element` is made a number of 16 bits.

    places: in half of a word, of each register; from 16 on in the other half. lands: in the number. magic: bits that are set besides. factor: log2 of
    what the number then is to be multiplied by, besides its scale; of INT4 it is first reduced by `magic` + zero, as a code.
    """

    element: str
    to: DType
    places: tuple[Bits, ...]
    lands: Bits
    magic: int = 0
    factor: int = 0

    def place(self, word: int, code: int) -> tuple[int, int, Bits]:
        """Of a block's word and one of its eight codes: row, column, and which bits of the word."""
        step, row, c = _thread(word)
        half, register = divmod(code, REGISTERS)
        first, second, third, fourth = ((x + HALF * half) % WORD for x in self.places[register])
        column = STEP * step + 2 * c + 8 * (register // 2) + half
        return row + 8 * (register % 2), column, (first, second, third, fourth)

    def terms(self, register: int) -> tuple[Term, ...]:
        """Whose results are or-ed: a code's bits at their places."""
        found: dict[int, Term] = {}
        for at, to in zip(self.places[register], self.lands, strict=True):
            before = found.get(at - to, Term(shift=at - to, mask=0, turned=False))
            mask, turned = before.mask | 0x10001 << to, before.turned or at >= HALF
            found[at - to] = Term(shift=at - to, mask=mask, turned=turned)
        return tuple(found[x] for x in sorted(found))


# BF16 has eight bits of a significand and FP16 eleven: 128 + u and 1024 + u hold a code u in their last bits.
# E2M1's exponent and fraction are the last of BF16's exponent and the first of its fraction: as numbers they are 2^-126 of
# their values, subnormals too. Of four codes three take one mask each, one of a turned word, the last takes two.
CODINGS = (
    Coding(element=INT4, to=BF16, places=tuple(map(_nibble, range(4))), lands=_nibble(0), magic=0x4300),
    Coding(element=INT4, to=F16, places=tuple(map(_nibble, range(4))), lands=_nibble(0), magic=0x6400),
    Coding(
        element=E2M1,
        to=BF16,
        places=((19, 12, 11, 10), (13, 6, 5, 4), (9, 2, 1, 0), (15, 8, 7, 14)),
        lands=(15, 8, 7, 6),
        factor=126,
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
# A scale of E4M3 is packed as 2^(x / 8 - SCALE_BIAS), x's last three bits its fraction: from 2^-9, subnormal, to 448. What numbers are then
# less by, 2^LEFT, is what keeps 448 times their factor below 2^128.
SCALE_BIAS, LEFT = 10, 7
# A group's exponent less its row's: as E4M3 0.5 * 2^-5 is the least normal number, and 6 * 2^6 the most of this size.
LEAST_SHIFT, MOST_SHIFT = -5, 6


def _thread(word: int) -> tuple[int, int, int]:
    """Of a block's word: which of its thread's it is, the thread's first row, and c."""
    part, rest = divmod(word, READ_WORDS * THREADS)
    thread, i = divmod(rest, READ_WORDS)
    return part * READ_WORDS + i, 16 * (thread // 32) + thread % 32 // 4, thread % 4


def coding(element: str, to: DType) -> Coding | Lookup:
    """Raises IRError where there is none."""
    for x in (*CODINGS, LOOKUP):
        if (x.element, x.to) == (element, to):
            return x
    raise IRError(f"no coding of {element} as {to}")


def record_bytes(scale_bytes: int, *, zeros: bool) -> int:
    """Of a row and a group: the scale, and with zeros the code of `magic` + zero."""
    return 2 * scale_bytes if zeros else scale_bytes


@dataclass(frozen=True, kw_only=True)
class Form:
    """How blocks are packed: codes of `element` for products with `to`, and a scale for each `group` columns.

    element: "int4", with scales of `to`, or "e2m1", with E8M0, of which E4M3 takes what a row's exponents differ by, or, of 16 columns, E4M3. zeros:
    whether records hold those of INT4; else 8 is zero. Raises IRError for what there is none of.
    """

    element: str
    to: DType
    group: int
    zeros: bool = False

    def __post_init__(self) -> None:
        found = coding(self.element, self.to)
        integers = isinstance(found, Coding) and found.magic
        groups = GROUPS if integers else (GROUPS[0], *[E4M3_GROUP] * isinstance(found, Coding))
        if self.group not in groups or (self.zeros and not integers):
            raise IRError(f"{self.element} with group={self.group}, zeros={self.zeros} is none")

    @property
    def format(self) -> str:
        """The name of what is packed so: `gemmgen.formats.Format.name`."""
        return f"{self.element}_{self.group}_{self.scale}{'_zeros' * self.zeros}"

    @property
    def coding(self) -> Coding | Lookup:
        return coding(self.element, self.to)

    @property
    def scale(self) -> str:
        if self.element == INT4:
            return self.to.name
        return E4M3.name if self.group == E4M3_GROUP else E8M0

    @property
    def record(self) -> Literal["scale", "zeros", "exponent", "shift"]:
        """What numbers are scaled by."""
        if self.to == LOOKUP.to:
            return "shift"
        return "zeros" if self.zeros else "exponent" if self.element == E2M1 else "scale"

    @property
    def left(self) -> int:
        """log2 of what numbers are less by than the weights, besides what belongs to a row or a tensor."""
        return LEFT if self.scale == E4M3.name else 0

    @property
    def record_bits(self) -> int:
        """Of an exponent's record, those of a fraction."""
        return E4M3.significand - 1 if self.scale == E4M3.name else 0

    @property
    def record_bias(self) -> int:
        """What an exponent is less by than its record."""
        return SCALE_BIAS if self.scale == E4M3.name else E8M0_BIAS

    @property
    def k_bytes(self) -> int:
        """Of a K block of what is multiplied by a block: a config's `block_k_bytes`."""
        return COLUMNS * self.to.bytes

    @property
    def steps(self) -> int:
        """Of wgmma, in a block's columns."""
        return self.k_bytes // STEP_BYTES

    @property
    def groups(self) -> int:
        """Of a block's columns."""
        return COLUMNS // self.group

    @property
    def group_steps(self) -> int:
        """Steps of K that share a scale."""
        return self.group * self.to.bytes // STEP_BYTES

    @property
    def record_bytes(self) -> int:
        scale = 1 if self.element == E2M1 else self.to.bytes
        return record_bytes(scale, zeros=self.zeros)

    @property
    def pair_bytes(self) -> int:
        """The records of a thread's two rows."""
        return 2 * self.groups * self.record_bytes

    @property
    def block_bytes(self) -> int:
        return CODES_BYTES + PAIRS * self.pair_bytes


OF_16_BITS = (BF16, F16)
# By format, what products take.
FORMS = {
    to: {
        x.format: x
        for x in (
            *(Form(element=INT4, to=to, group=g, zeros=z) for g in GROUPS for z in (False, True) if to in OF_16_BITS),
            *(Form(element=c.element, to=to, group=GROUPS[0]) for c in (*CODINGS, LOOKUP) if (c.element, c.to) == (E2M1, to)),
            *(Form(element=c.element, to=to, group=E4M3_GROUP) for c in CODINGS if (c.element, c.to) == (E2M1, to)),
        )
    }
    for to in (*OF_16_BITS, E4M3)
}  # fmt: skip
# Of products with 16 bits, where a format's name says of which.
NAMED = {name: form for to in OF_16_BITS for name, form in FORMS[to].items()}


def plain_weights(to: DType) -> str:
    """The format that is taken where none is said: INT4, a scale for each 128 columns, no zeros; of E4M3 what there is."""
    if to not in OF_16_BITS:
        return next(iter(FORMS[to]))
    return Form(element=INT4, to=to, group=GROUPS[-1]).format
