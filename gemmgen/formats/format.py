"""What weights of 4 and 8 bits are: an element, and what scales groups or rows of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..errors import ArgumentError
from ..ir.codings import BITS, E2M1, FP8, INT4, INT8
from ..ir.dtypes import BF16, DTYPES, E4M3, F16, F32, DType
from ..ir.packed import COLUMN, E8M0, PAIR
from ..ir.packed import GROUPS as OF_BLOCKS

GROUPS = (*OF_BLOCKS, COLUMN)  # of INT4
INT4_SCALES = (F16.name, BF16.name, F32.name)
MICROSCALED = {E8M0: 32, E4M3.name: 16}  # of E2M1: the group by the scale (OCP MX 1.0; NVFP4)
SCALES = {INT4: INT4_SCALES, E2M1: (*MICROSCALED,), INT8: (F32.name,), FP8: (F32.name,)}


@dataclass(frozen=True, kw_only=True)
class Format:
    """A row [K] of weights as codes of 4 or 8 bits, with a scale for each `group` of its columns.

    element: "int4": a code u, 0 to 15, is (u - zero) * scale. "e2m1": a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6,
    times the scale. Of 8 bits "int8", -128 to 127, and "e4m3", each times the float32 of its row. group: 0 for all of the row. scale: the dtype's name: of INT4 "f16", "bf16" or "f32"; of E2M1 "e8m0",
    a power of two for 32, or "e4m3" for 16 beside a float32 for the whole tensor. zeros: whether each group of INT4 has a
    zero of its own; else it is 8.

    Raises ArgumentError for what no format is.
    """

    element: str
    group: int
    scale: str
    zeros: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.element, str) or self.element not in BITS:
            raise ArgumentError("element", self.element, f"must be {' or '.join(BITS)}")
        scales = SCALES[self.element]
        if self.scale not in scales:
            allowed = f"must be {' or '.join(scales)} for {self.element}"
            raise ArgumentError("scale", self.scale, allowed)
        groups = self._groups
        if isinstance(self.group, bool) or self.group not in groups:
            allowed = f"must be {' or '.join(map(str, groups))} for {self.element}"
            raise ArgumentError("group", self.group, allowed)
        if not isinstance(self.zeros, bool):
            raise ArgumentError("zeros", self.zeros, "must be True or False")
        if self.zeros and self.element != INT4:
            allowed = f"must be False for {self.element}: its codes have signs"
            raise ArgumentError("zeros", self.zeros, allowed)

    @property
    def _groups(self) -> tuple[int, ...]:
        """That there are."""
        if self.bits == 8:
            return (COLUMN,)
        return GROUPS if self.element == INT4 else (MICROSCALED[self.scale],)

    @property
    def name(self) -> str:
        """int4_128_f16_zeros, int4_column_bf16, e2m1_32_e8m0"""
        group = self.group or "column"
        return f"{self.element}_{group}_{self.scale}{'_zeros' * self.zeros}"

    @property
    def bits(self) -> int:
        """Of a code."""
        return BITS[self.element]

    @property
    def octet(self) -> int:
        """Codes of a byte."""
        return 8 // self.bits

    @property
    def scale_dtype(self) -> DType | None:
        """None for E8M0, which is an exponent alone."""
        return DTYPES.get(self.scale)

    @property
    def tensor_scaled(self) -> bool:
        """Whether a float32 scales the whole tensor, too."""
        return self.scale == E4M3.name

    def group_of(self, k: int) -> int:
        """How many of `k` columns share a scale. Raises ArgumentError if `k` is not made of whole groups."""
        step = self.group or PAIR
        if k <= 0 or k % step:
            raise ArgumentError("K", k, f"must be a multiple of {step} for {self.name}")
        return self.group or k


def widest_group(*columns: int) -> int:
    """The largest group of packed weights, 32, 64 or 128, that divides each of `columns`. Raises ArgumentError for columns that none divides."""
    least, most = OF_BLOCKS[0], OF_BLOCKS[-1]
    found = math.gcd(most, *columns)  # of powers of two
    if found < least:
        k = next(x for x in columns if x % least)
        groups = " or ".join(map(str, OF_BLOCKS))
        allowed = f"must be a multiple of {least}: a whole row's scale is packed as that of each {groups} columns"
        raise ArgumentError("K", k, allowed)
    return found


def alike(one: Format, other: Format, k: int) -> bool:
    """Whether they are the same of `k` columns, which may be one of the groups that formats have. Raises ArgumentError if `k` is not made of whole groups."""
    return replace(one, group=other.group) == other and one.group_of(k) == other.group_of(k)


def int4(group: int = 128, scale: str = F16.name, *, zeros: bool = False) -> Format:
    """INT4 with a scale for each `group` columns of a row (32, 64, 128; 0: all). Raises ArgumentError."""
    return Format(element=INT4, group=group, scale=scale, zeros=zeros)


MXFP4 = Format(element=E2M1, group=32, scale=E8M0)
NVFP4 = Format(element=E2M1, group=16, scale=E4M3.name)

INT8_ROWS = Format(element=INT8, group=COLUMN, scale=F32.name)
FP8_ROWS = Format(element=FP8, group=COLUMN, scale=F32.name)

KNOWN = {
    x.name: x
    for x in (
        *(
            int4(group, scale, zeros=zeros)
            for group in GROUPS
            for scale in INT4_SCALES
            for zeros in (False, True)
        ),
        MXFP4,
        NVFP4,
        INT8_ROWS,
        FP8_ROWS,
    )
}


def named(name: str) -> Format:
    """The format whose `Format.name` is `name`. Raises ArgumentError."""
    if not isinstance(name, str) or name not in KNOWN:
        raise ArgumentError("name", name, f"must be one of {', '.join(KNOWN)}")
    return KNOWN[name]
