"""Weights of 4 bits as a warpgroup reads them: where a code lies, and how registers of `wgmma`'s A are made of a word.

A block is 64 rows by 128 columns: the codes, then a record for each row and group of columns. 16 bytes of a thread are its codes for four
steps of 16 of K, a word each; the 16 bytes of thread t follow those of thread t - 1, so that eight threads read 128 bytes, each bank once.

Thread t of a warpgroup holds, of a step, rows 16 w + g and 16 w + g + 8, columns 2 c, 2 c + 1, 2 c + 8, 2 c + 9 (w = t / 32, g = t % 32 / 4, c = t % 4): register
i has row g + 8 (i % 2) and columns from 2 c + 8 (i / 2) on (PTX ISA, "Register Fragments", matrix A). A word's halves are the two columns of a register,
and each half has the four registers' codes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import IRError
from .dtypes import BF16, F16, DType

ROWS, COLUMNS = 64, 128
STEP = 16  # of K, of 16-bit operands
REGISTERS = 4
READ_STEPS = 4  # that 16 bytes of a thread are for
THREADS = 128
CODES_BYTES = ROWS * COLUMNS // 2
PAIRS = 32  # of rows: 16 w + g and 16 w + g + 8, at 8 w + g

Bits = tuple[int, int, int, int]  # where the bits of a code are, the highest first


def _nibble(i: int) -> Bits:
    return (4 * i + 3, 4 * i + 2, 4 * i + 1, 4 * i)


@dataclass(frozen=True, kw_only=True)
class Coding:
    """How a code of `element` is made a number of 16 bits.

    places: in half of a word, of each register. lands: in the number. magic: bits that are set besides. factor: log2 of what the number then
    is to be multiplied by, besides its scale; of INT4 it is first reduced by `magic` + zero, as a code.
    """

    element: str
    to: DType
    places: tuple[Bits, ...]
    lands: Bits
    magic: int = 0
    factor: int = 0

    def terms(self, register: int) -> tuple[tuple[int, int], ...]:
        """Right shifts of a word (left, if negative), and masks, whose results are or-ed: a code's bits at their places."""
        by_shift: dict[int, int] = {}
        for at, to in zip(self.places[register], self.lands, strict=True):
            by_shift[at - to] = by_shift.get(at - to, 0) | 0x10001 << to
        return tuple(sorted(by_shift.items()))


# BF16 has eight bits of a significand and FP16 eleven: 128 + u and 1024 + u hold a code u in their last bits.
# E2M1's exponent and fraction are the last of BF16's exponent and the first of its fraction: as numbers they are 2^-126 of
# their values, subnormals too. Of four codes three take one mask each, the last the bits that are left.
CODINGS = (
    Coding(element="int4", to=BF16, places=tuple(map(_nibble, range(4))), lands=_nibble(0), magic=0x4300),
    Coding(element="int4", to=F16, places=tuple(map(_nibble, range(4))), lands=_nibble(0), magic=0x6400),
    Coding(
        element="e2m1",
        to=BF16,
        places=((15, 8, 7, 6), (12, 5, 4, 3), (9, 2, 1, 0), (14, 13, 11, 10)),
        lands=(15, 8, 7, 6),
        factor=126,
    ),
)  # fmt: skip


def coding(element: str, to: DType) -> Coding:
    """Raises IRError where there is none."""
    for x in CODINGS:
        if (x.element, x.to) == (element, to):
            return x
    raise IRError(f"no coding of {element} as {to}")


def record_bytes(scale_bytes: int, *, zeros: bool) -> int:
    """Of a row and a group: the scale, and with zeros the code of `magic` + zero."""
    return 2 * scale_bytes if zeros else scale_bytes
