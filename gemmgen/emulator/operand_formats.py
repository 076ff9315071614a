"""What the codes of wgmma's floating-point operand types mean, as tables indexed by code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.unsignedinteger[Any]]
Floats = npt.NDArray[np.floating[Any]]
Float64s = npt.NDArray[np.float64]
Int16s = npt.NDArray[np.int16]
Int64s = npt.NDArray[np.int64]
Zero = Literal["ignored", "field"]

K_BYTES = 32  # of one wgmma
NO_EXPONENT = (
    -4096
)  # of a term that does not take part in the alignment; int16 holds the sum of two
COARSE = 4096  # the lowest set bit of zero, which is a multiple of any power of two


@dataclass(frozen=True, kw_only=True)
class Format:
    """A floating-point operand type, IEEE-like but for e4m3's missing infinities."""

    bits: int
    fraction: int  # bits
    infinities: bool
    work: type[np.floating[Any]]  # holds every aligned term and their sum exactly

    @property
    def k(self) -> int:
        """Elements of K in one wgmma."""
        return K_BYTES * 8 // self.bits

    @property
    def top(self) -> int:
        """The all-ones exponent field."""
        return (1 << (self.bits - 1 - self.fraction)) - 1

    @property
    def bias(self) -> int:
        return self.top // 2


FORMATS = {
    "e4m3": Format(bits=8, fraction=3, infinities=False, work=np.float32),
    "e5m2": Format(bits=8, fraction=2, infinities=True, work=np.float32),
    "f16": Format(bits=16, fraction=10, infinities=True, work=np.float64),
    "bf16": Format(bits=16, fraction=7, infinities=True, work=np.float64),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """The codes of one format; every array is indexed by code."""

    values: Floats  # of the format's `work` type; 0 where not finite
    exponents: Int16s  # as the alignment sees them
    lowest_bits: Int16s  # log2 of the value's lowest set bit
    signs: npt.NDArray[np.float32]  # -1, 0 or 1; infinities and NaN themselves
    special: npt.NDArray[np.bool_]  # infinity or NaN


def decode(codes: Codes, kind: str) -> Float64s:
    """The float64 value of each code of type `kind`, exactly; same shape."""
    form = FORMATS[kind]
    significand, exponent = _parts(codes, form)
    magnitude = codes & (1 << (form.bits - 1)) - 1
    value = np.ldexp(significand.astype(np.float64), exponent)
    if form.infinities:
        infinity = form.top << form.fraction
        value = np.where(magnitude == infinity, np.inf, value)
        value = np.where(magnitude > infinity, np.nan, value)
    else:
        value = np.where(magnitude == (1 << (form.bits - 1)) - 1, np.nan, value)
    return np.where(codes >> (form.bits - 1) == 1, -value, value)


@cache
def table(kind: str, zero: Zero) -> Table:
    """Subnormals have the least normal exponent; zeros have it too if `zero` is "field"."""
    form = FORMATS[kind]
    codes = np.arange(1 << form.bits).astype(np.uint16)
    significand, exponent = _parts(codes, form)
    aligned = exponent + form.fraction
    if zero == "ignored":
        aligned[significand == 0] = NO_EXPONENT
    lowest = np.where(significand == 0, COARSE, exponent + _log2(significand & -significand))
    values = decode(codes, kind)
    special = ~np.isfinite(values)
    return Table(
        values=np.where(special, 0.0, values).astype(form.work),
        exponents=aligned.astype(np.int16),
        lowest_bits=lowest.astype(np.int16),
        signs=np.where(special, values, np.sign(values)).astype(np.float32),
        special=special,
    )


def _parts(codes: Codes, form: Format) -> tuple[Int64s, Int64s]:
    """Finite magnitudes as integers times 2^exponent."""
    bits = codes.astype(np.int64)
    field = bits >> form.fraction & form.top
    significand = bits & (1 << form.fraction) - 1 | (field > 0).astype(np.int64) << form.fraction
    return significand, np.maximum(field, 1) - form.bias - form.fraction


def _log2(powers: Int64s) -> Int64s:
    """Of powers of two (or zeros: meaningless)."""
    return np.frexp(powers)[1].astype(np.int64) - 1
