"""Weights of 4 or 8 bits as a warpgroup reads them, in blocks.

A block is 64 rows by 128 columns: the codes, then a record for each row and group of columns, of 8 bits none: a row has one scale, which is an epilogue's.
16 bytes of a thread are its codes for 64 of K, of 8 bits for 32, four words; the 16 bytes of thread t follow those of thread t - 1, so that eight threads read 128 bytes, each bank once. What a word is: `codings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import IRError
from .codings import (
    BITS,
    CODINGS,
    E2M1,
    FP8,
    INT4,
    INT8,
    LEFT,
    LOOKUP,
    OCTETS,
    SCALE_BIAS,
    SHIFTS,
    SIZES,
    THREADS,
    WORD,
    AnyCoding,
    Coding,
    coding,
)
from .dtypes import BF16, DTYPES, E4M3, F16, F32, DType

E8M0 = "e8m0"  # a scale that is an exponent
E8M0_BIAS = 127
GROUPS = (32, 64, 128)  # columns that share a scale, where weights are packed
E4M3_GROUP = 16  # and where E2M1 has scales of E4M3
COLUMN = 0  # all of a row's columns share a scale: those of 8 bits
PAIR = 2  # columns that are a byte of 4 bits, and a register of 16

ROWS, COLUMNS = 64, 128
STEP_BYTES = 32  # of wgmma's K
PAIRS = 32  # of rows: 16 w + g and 16 w + g + 8, at 8 w + g


def folded(scale: str, to: DType) -> bool:
    """Whether exponents of a row's groups are packed by what they are more than the row's own: E8M0's do not fit into numbers of `to`."""
    return scale == E8M0 and to in SHIFTS


def record_bytes(scale_bytes: int, *, zeros: bool) -> int:
    """Of a row and a group: the scale, and with zeros the code of `magic` + zero."""
    return 2 * scale_bytes if zeros else scale_bytes


By = Literal["scale", "zeros", "exponent", "shift", "whole", "sign", "offset", "power", "bits"]
# Of 8 bits, where nothing scales numbers: how codes become some.
ALONE: dict[tuple[str, DType], By] = {
    (INT8, BF16): "sign",
    (INT8, F16): "offset",
    (FP8, BF16): "power",
    (FP8, F16): "bits",
}


@dataclass(frozen=True, kw_only=True)
class Form:
    """How blocks are packed: codes of `element` for products with `to`, and a scale for each `group` columns.

    element: "int4", with scales of `to`, of E4M3 with FP32, which are of sums of a block's columns, or "e2m1", with E8M0, of which E4M3 and FP16 take what a row's exponents differ by, or, of 16 columns, E4M3; of 8 bits
    "int8" or "e4m3", whose scales, of rows, are not packed: `group` is 0. zeros: whether records hold those of INT4; else 8 is zero. Raises IRError for what
    there is none of.
    """

    element: str
    to: DType
    group: int
    zeros: bool = False

    def __post_init__(self) -> None:
        found = coding(self.element, self.to)
        integers, whole = self.element == INT4, found == SIZES
        of_e2m1 = (GROUPS[0], *[E4M3_GROUP] * isinstance(found, Coding))
        groups = (COLUMN,) if self.bits == 8 else GROUPS if integers else of_e2m1
        groups = GROUPS[-1:] if whole else groups
        if self.group not in groups or (self.zeros and (whole or not integers)):
            raise IRError(f"{self.element} with group={self.group}, zeros={self.zeros} is none")

    @property
    def format(self) -> str:
        """The name of what is packed so: `gemmgen.formats.Format.name`."""
        group = self.group or "column"
        zeros = "_zeros" if self.zeros else ""
        return f"{self.element}_{group}_{self.scale}{zeros}"

    @property
    def name(self) -> str:
        """What blocks are called (`Problem.weights`): the format's name, and the dtype where a format that names none is packed for FP16, otherwise than for BF16."""
        named = self.element != INT4 and self.to == F16
        return f"{self.format}_{F16}" if named else self.format

    @property
    def bits(self) -> int:
        """Of a code."""
        return BITS[self.element]

    @property
    def codes(self) -> int:
        """Of a word."""
        return WORD // self.bits

    @property
    def codes_bytes(self) -> int:
        """Of a block, before its records."""
        return ROWS * COLUMNS * self.bits // 8

    @property
    def words(self) -> int:
        """Of a thread: its codes of a block."""
        return self.codes_bytes // (4 * THREADS)

    @property
    def coding(self) -> AnyCoding:
        return coding(self.element, self.to)

    @property
    def scale(self) -> str:
        if self.bits == 8 or self.scales_sums:
            return F32.name
        if self.element == INT4:
            return self.to.name
        return E4M3.name if self.group == E4M3_GROUP else E8M0

    @property
    def scales_sums(self) -> bool:
        """Whether records are scales of sums over a block's columns, and numbers have none."""
        return self.coding == SIZES

    @property
    def by(self) -> By:
        """What numbers are scaled by; where nothing scales them, what makes numbers of codes."""
        if self.scales_sums:
            return "whole"
        if self.bits == 8:
            return ALONE[self.element, self.to]
        if self.to == LOOKUP.to:
            return "shift"
        return "zeros" if self.zeros else "exponent" if self.element == E2M1 else "scale"

    @property
    def left(self) -> int:
        """log2 of what numbers are less by than the weights, besides what belongs to a row or a tensor."""
        if self.by == "bits":
            assert isinstance(self.coding, Coding)
            return self.coding.factor
        return LEFT if self.scale == E4M3.name else 0

    @property
    def record_bits(self) -> int:
        """Of an exponent's record, those of a fraction."""
        return E4M3.significand - 1 if self.scale == E4M3.name else 0

    @property
    def record_bias(self) -> int:
        """What an exponent is less by than its record."""
        if self.scale == E4M3.name:
            return SCALE_BIAS
        return -SHIFTS[self.to][0] if folded(self.scale, self.to) else E8M0_BIAS

    @property
    def factors(self) -> bool:
        """Whether rows are to be multiplied by something besides: what their exponents have in common, or a tensor's scale."""
        return self.left > 0 or self.bits == 8 or folded(self.scale, self.to)

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
        """Of a block's columns that have a record."""
        return COLUMNS // self.group if self.group else 0

    @property
    def k_step(self) -> int:
        """What K is a multiple of."""
        return self.group or PAIR

    @property
    def group_steps(self) -> int:
        """Steps of K that share a scale."""
        return self.group * self.to.bytes // STEP_BYTES

    @property
    def record_bytes(self) -> int:
        scale = 1 if self.element == E2M1 else DTYPES[self.scale].bytes
        return record_bytes(scale, zeros=self.zeros)

    @property
    def pair_bytes(self) -> int:
        """The records of a thread's two rows."""
        return 2 * self.groups * self.record_bytes

    @property
    def block_bytes(self) -> int:
        return self.codes_bytes + PAIRS * self.pair_bytes


OF_16_BITS = (BF16, F16)
# Of 4 bits: by name, what products take.
FORMS = {
    to: {
        x.name: x
        for x in (
            *(Form(element=INT4, to=to, group=g, zeros=z) for g in GROUPS for z in (False, True) if to in OF_16_BITS),
            *(Form(element=c.element, to=to, group=GROUPS[0]) for c in (*CODINGS, LOOKUP) if (c.element, c.to) == (E2M1, to)),
            *(Form(element=c.element, to=to, group=E4M3_GROUP) for c in CODINGS if (c.element, c.to) == (E2M1, to)),
            *(Form(element=c.element, to=to, group=GROUPS[-1]) for c in (SIZES,) if c.to == to),
        )
    }
    for to in (*OF_16_BITS, E4M3)
}  # fmt: skip
OF_8_BITS = {
    to: {x.name: x for x in (Form(element=c.element, to=to, group=COLUMN) for c in OCTETS if c.to == to)}
    for to in OF_16_BITS
}  # fmt: skip
BY_BITS = {4: FORMS, 8: OF_8_BITS}  # of a code
# What layers multiply packed weights by: x in its own 16 bits, or quantised to E4M3, with a scale for each row, or for each 128 columns of one.
BY_BLOCK = f"{E4M3.name}_{COLUMNS}"
ACTIVATIONS = (None, E4M3.name, BY_BLOCK)


def forms(bits: int, to: DType) -> dict[str, Form]:
    """By name, what is packed of codes of so many bits for products with `to`."""
    return BY_BITS[bits].get(to, {})


def named_for(activations: str | None, bits: int | None = None) -> dict[str, Form]:
    """By name, what is packed of codes of so many bits, None: of any, for products with 16 bits, None, or with activations that are quantised to FP8: scales of sums of 128 columns need them by block."""
    dtypes = OF_16_BITS if activations is None else (E4M3,)
    known = BY_BITS if bits is None else (bits,)
    found = {name: form for to in dtypes for b in known for name, form in forms(b, to).items()}
    coarse = activations is not None and activations != BY_BLOCK
    return {n: f for n, f in found.items() if not (coarse and f.scales_sums)}


def every_name() -> tuple[str, ...]:
    """What B is packed from, in any family."""
    of_all = (names for by_dtype in BY_BITS.values() for names in by_dtype.values())
    return tuple(dict.fromkeys(name for names in of_all for name in names))


def plain_weights(to: DType, bits: int = 4) -> str:
    """What is taken where none is said: INT4, a scale for each 128 columns, no zeros; of 8 bits INT8; of E4M3 what there is."""
    if to not in OF_16_BITS or bits == 8:
        return next(iter(forms(bits, to)))
    return Form(element=INT4, to=to, group=GROUPS[-1]).name
