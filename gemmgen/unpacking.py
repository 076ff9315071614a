"""Kernels that write out what packed weights of 4 bits stand for: what they are, and their CUDA source.

A kernel decodes blocks (`gemmgen.ir.packed`) in the registers of a warpgroup as a product takes them from there, and stores the numbers. Like a
cast (`gemmgen.casts`) it is no `Kernel`: there is nothing to lower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .emit import PAIRS as PTX_PAIRS
from .emit import plain
from .errors import IRError
from .ir.dtypes import E4M3, DType
from .ir.packed import (
    CODES_BYTES,
    COLUMNS,
    E2M1_VALUES,
    E8M0,
    GROUPS,
    LEAST_SHIFT,
    LOOKUP,
    MOST_SHIFT,
    PAIRS,
    ROWS,
    STEP,
    THREADS,
    ZERO,
    Coding,
    coding,
    record_bytes,
)
from .ir.resources import Param

SM_CTAS = 8


@dataclass(frozen=True, kw_only=True)
class Unpacking:
    """Blocks of `element` with a scale for each `group` columns -> numbers of `to` [rows, columns], (code - zero) * scale, rounded once.

    element: "int4", with scales of `to`, or "e2m1", with E8M0, of which E4M3 takes what a row's exponents differ by. zeros: whether records hold those of INT4; else 8 is zero.
    Raises IRError.
    """

    element: str
    to: DType
    group: int
    zeros: bool = False

    def __post_init__(self) -> None:
        found = coding(self.element, self.to)
        integers = isinstance(found, Coding) and found.magic
        groups = GROUPS if integers else GROUPS[:1]
        if self.group not in groups or (self.zeros and not integers):
            raise IRError(f"{self.element} with group={self.group}, zeros={self.zeros} is none")

    @property
    def coding(self) -> Coding:
        """Of numbers of 16 bits."""
        found = coding(self.element, self.to)
        assert isinstance(found, Coding)
        return found

    @property
    def layout(self) -> str:
        """Which of templates/unpacking goes through a block."""
        return "bytes" if self.to == E4M3 else "halves"

    @property
    def name(self) -> str:
        """The kernel's, of all fields."""
        return f"unpack_{self.element}_{self.group}{'_zeros' * self.zeros}_to_{self.to}"

    @property
    def scale(self) -> str:
        return E8M0 if self.element == LOOKUP.element else self.to.name

    @property
    def groups(self) -> int:
        """Of a block's columns."""
        return COLUMNS // self.group

    @property
    def group_steps(self) -> int:
        """Steps of K that share a scale."""
        return self.group // STEP

    @property
    def record_bytes(self) -> int:
        scale = 1 if self.scale == E8M0 else self.to.bytes
        return record_bytes(scale, zeros=self.zeros)

    @property
    def block_bytes(self) -> int:
        return CODES_BYTES + PAIRS * 2 * self.groups * self.record_bytes

    @property
    def record(self) -> str:
        """Which of templates/unpacking reads a record."""
        if self.to == E4M3:
            return "table"
        return "zeros" if self.zeros else "exponent" if self.scale == E8M0 else "scale"

    @property
    def tables(self) -> tuple[str, ...]:
        """By a group's exponent less its row's, the eight sizes of E2M1 as E4M3: two words of C."""
        shifts = range(LEAST_SHIFT, MOST_SHIFT + 1)
        sizes = [[_e4m3(x * 2.0**shift) for x in E2M1_VALUES] for shift in shifts]
        return tuple(f"{{{_word(x[:4])}, {_word(x[4:])}}}" for x in sizes)

    @property
    def numbers(self) -> tuple[str, ...]:
        """What each register of a step is before it is scaled, in C, of a `word`."""
        return tuple(_of(self.coding, i) for i in range(4))

    @property
    def eight(self) -> str:
        """The code of zero in both halves where no other is stored."""
        return _twice(self.coding.magic + ZERO)

    @property
    def exponent_step(self) -> str:
        """1 in the exponent's field, in both halves."""
        return _twice(1 << self.to.significand - 1)

    @property
    def exponent_least(self) -> str:
        """What an exponent of E8M0, whose bias is BF16's, is greater by in that field: a number lacks 2^`coding.factor`."""
        return _twice(self.coding.factor << self.to.significand - 1)

    @property
    def threads(self) -> int:
        """Of a CTA."""
        return THREADS

    @property
    def ctas_per_sm(self) -> int:
        """That run at once at least."""
        return SM_CTAS

    @property
    def params(self) -> tuple[Param, ...]:
        """In the order of the kernel's."""
        pointers = (
            Param(name="blocks", ctype="const uint8_t* __restrict__"),
            Param(name="numbers", ctype=f"uint{self.to.bits}_t* __restrict__"),
        )
        return (*pointers, *(Param(name=x, ctype="int") for x in ("rows", "columns")))

    def tiles(self, rows: int, columns: int) -> int:
        """Blocks of a matrix: CTAs that have something to do."""
        return -(-rows // ROWS) * -(-columns // COLUMNS)


def _e4m3(x: float) -> int:
    """The code of a number that E4M3 has, from 0 on."""
    exponent = max(math.frexp(x)[1] - 1, E4M3.min_exponent) if x else E4M3.min_exponent
    steps = int(math.ldexp(x, E4M3.significand - 1 - exponent))
    return ((exponent - E4M3.min_exponent) << (E4M3.significand - 1)) + steps


def _word(octets: list[int]) -> str:
    return _hex(int.from_bytes(bytes(octets), "little"))


def _of(code: Coding, register: int) -> str:
    terms = [f"{_shifted(shift)} & {_hex(mask)}" for shift, mask in code.terms(register)]
    return " | ".join([*(f"({x})" for x in terms), *[_twice(code.magic)] * bool(code.magic)])


def _shifted(shift: int) -> str:
    return "word" if not shift else f"(word {'>>' if shift > 0 else '<<'} {abs(shift)})"


def _twice(half: int) -> str:
    return _hex(half * 0x10001)


def _hex(x: int) -> str:
    return f"0x{x:08X}"


def source(unpacking: Unpacking) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC. Same kernel, same bytes."""
    sizes = {"rows": ROWS, "columns": COLUMNS, "step": STEP, "codes_bytes": CODES_BYTES}
    return plain("unpacking/unpack.cu.j2", PTX_PAIRS, kernel=unpacking, **sizes)
