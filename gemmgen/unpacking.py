"""Kernels that write out what packed weights of 4 bits stand for: what they are, and their CUDA source.

A kernel decodes blocks (`gemmgen.ir.packed`) in the registers of a warpgroup as a product takes them from there, and stores the numbers. Like a
cast (`gemmgen.casts`) it is no `Kernel`: there is nothing to lower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .emit import PAIRS as PTX_PAIRS
from .emit import plain
from .emit.decoding import eight, exponent_least, exponent_step, hexadecimal, numbers
from .ir.dtypes import E4M3
from .ir.packed import (
    CODES_BYTES,
    COLUMNS,
    E2M1_VALUES,
    LEAST_SHIFT,
    MOST_SHIFT,
    ROWS,
    STEP,
    THREADS,
    Form,
)
from .ir.resources import Param

SM_CTAS = 8


@dataclass(frozen=True, kw_only=True)
class Unpacking(Form):
    """Blocks -> numbers of `to` [rows, columns], (code - zero) * scale, rounded once. Raises IRError."""

    @property
    def layout(self) -> str:
        """Which of templates/unpacking goes through a block."""
        return "bytes" if self.to == E4M3 else "halves"

    @property
    def name(self) -> str:
        """The kernel's, of all fields."""
        return f"unpack_{self.element}_{self.group}{'_zeros' * self.zeros}_to_{self.to}"

    @property
    def reader(self) -> str:
        """Which of templates/unpacking reads a record."""
        return "table" if self.to == E4M3 else self.record

    @property
    def tables(self) -> tuple[str, ...]:
        """By a group's exponent less its row's, the eight sizes of E2M1 as E4M3: two words of C."""
        shifts = range(LEAST_SHIFT, MOST_SHIFT + 1)
        sizes = [[_e4m3(x * 2.0**shift) for x in E2M1_VALUES] for shift in shifts]
        return tuple(f"{{{_word(x[:4])}, {_word(x[4:])}}}" for x in sizes)

    @property
    def numbers(self) -> tuple[str, ...]:
        """What each register of a step is before it is scaled, in C, of a `word`."""
        return numbers(self.coding)

    @property
    def eight(self) -> str:
        """The code of zero in both halves where no other is stored."""
        return eight(self.coding)

    @property
    def exponent_step(self) -> str:
        """1 in the exponent's field, in both halves."""
        return exponent_step(self.to)

    @property
    def exponent_least(self) -> str:
        """What an exponent of E8M0, whose bias is BF16's, is greater by in that field: a number lacks 2^`coding.factor`."""
        return exponent_least(self.coding)

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
    return hexadecimal(int.from_bytes(bytes(octets), "little"))


def source(unpacking: Unpacking) -> str:
    """The kernel's self-contained CUDA source: it includes nothing under NVRTC. Same kernel, same bytes."""
    sizes = {"rows": ROWS, "columns": COLUMNS, "step": STEP, "codes_bytes": CODES_BYTES}
    return plain("unpacking/unpack.cu.j2", PTX_PAIRS, kernel=unpacking, **sizes)
