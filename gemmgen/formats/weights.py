"""A tensor of weights of 4 or 8 bits in one form, whichever checkpoint it came from, and what it stands for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codes import code_type, decode
from ..errors import ArgumentError
from ..ir.codings import FP8, INT4, INT8, ZERO
from ..ir.dtypes import E4M3
from ..ir.packed import GROUPS
from .format import Format, widest_group
from .numbers import Bytes, Floats, e2m1_values, e8m0_values

MOST_ZERO = 15
E4M3_NAN = 0x7F  # and with a sign


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """Weights [..., N, K] in `format`, whose groups are g columns.

    codes: uint8 [..., N, K / 2]; column 2 j of a row is in the low four bits of byte j; of 8 bits [..., N, K], the bits of INT8 or E4M3. scales: [..., N, K / g], their bits:
    uint8 for E8M0 and E4M3, uint16 for f16 and bf16, uint32 for f32. zeros: uint8 [..., N, K / g], 0 to 15, where the format has them.
    tensor_scale: a float32 by which all is multiplied, of NVFP4.

    Raises ArgumentError for an array of another shape or dtype, a side of 0, a zero above 15, a scale or an E4M3 that is no finite number.
    """

    format: Format
    codes: Bytes
    scales: npt.NDArray[np.unsignedinteger]
    zeros: Bytes | None = None
    tensor_scale: float = 1.0

    def __post_init__(self) -> None:
        _check("codes", self.codes, np.dtype(np.uint8))
        if self.codes.ndim < 2 or 0 in self.codes.shape:
            allowed = f"must be [..., N, K{' / 2' * (self.format.octet > 1)}], none of them 0"
            raise ArgumentError("codes shape", self.codes.shape, allowed)
        k = self.shape[-1]
        shape = (*self.shape[:-1], k // self.format.group_of(k))
        _check("scales", self.scales, scale_type(self.format), shape)
        if self.format.zeros:
            _check("zeros", self.zeros, np.dtype(np.uint8), shape)
            worst = int(np.max(self.zeros, initial=0)) if self.zeros is not None else 0
            if worst > MOST_ZERO:
                raise ArgumentError("zeros", worst, f"must be at most {MOST_ZERO}")
        elif self.zeros is not None:
            raise ArgumentError("zeros", self.zeros, f"must be None: {self.format.name} has none")
        _check_finite("scales", self.scales, np.isfinite(scale_values(self.format, self.scales)))
        if self.format.element == FP8:
            _check_finite("codes", self.codes, (self.codes & E4M3_NAN) != E4M3_NAN)
        self._check_tensor_scale()

    def _check_tensor_scale(self) -> None:
        scale = self.tensor_scale
        if (
            not isinstance(scale, float)
            or float(np.float32(scale)) != scale
            or not np.isfinite(scale)
        ):
            raise ArgumentError("tensor_scale", scale, "must be a finite float32")
        if scale != 1.0 and not self.format.tensor_scaled:
            raise ArgumentError("tensor_scale", scale, f"must be 1.0: {self.format.name} has none")

    @property
    def shape(self) -> tuple[int, ...]:
        """[..., N, K]"""
        *lead, octets = self.codes.shape
        return (*lead, self.format.octet * octets)


def _check_finite(argument: str, bits: npt.NDArray[np.unsignedinteger], finite: Any) -> None:
    if not finite.all():
        first = tuple(int(x[0]) for x in np.nonzero(~finite))
        raise ArgumentError(argument, hex(int(bits[first])), f"is not finite, at {first}")


def _check(
    argument: str, x: Any, dtype: np.dtype[Any], shape: tuple[int, ...] | None = None
) -> None:
    if not isinstance(x, np.ndarray):
        raise ArgumentError(argument, type(x).__name__, "must be a NumPy array")
    if x.dtype != dtype:
        raise ArgumentError(f"{argument} dtype", str(x.dtype), f"must be {dtype}")
    if shape is not None and x.shape != shape:
        raise ArgumentError(f"{argument} shape", x.shape, f"must be {list(shape)}")


def scale_type(form: Format) -> np.dtype[np.unsignedinteger]:
    """Of the bits of a scale."""
    return code_type(form.scale_dtype) if form.scale_dtype else np.dtype(np.uint8)


def scale_values(form: Format, bits: npt.NDArray[np.unsignedinteger]) -> Floats:
    """The numbers that scales of `bits` are, in their shape, exactly."""
    return (
        decode(bits, form.scale_dtype) if form.scale_dtype else e8m0_values(bits.astype(np.uint8))
    )


def nibbles(packed: Bytes) -> Bytes:
    """uint8 [..., K / 2] -> the codes of all columns, uint8 [..., K], low four bits first."""
    codes: Bytes = np.stack([packed & 15, packed >> 4], -1)
    return codes.reshape(*packed.shape[:-1], -1)


def paired(codes: Bytes) -> Bytes:
    """The inverse of `nibbles`: codes 0 to 15, uint8 [..., K] with an even K -> uint8 [..., K / 2]."""
    both = codes.reshape(*codes.shape[:-1], -1, 2)
    return (both[..., 0] | both[..., 1] << 4).astype(np.uint8)


def separate(codes: Bytes, form: Format) -> Bytes:
    """Bytes of the codes in `form` -> the codes of all columns, uint8 [..., K]."""
    return nibbles(codes) if form.octet > 1 else codes


def joined(codes: Bytes, form: Format) -> Bytes:
    """The inverse of `separate`."""
    return paired(codes) if form.octet > 1 else np.ascontiguousarray(codes)


def grouped(weights: Weights, group: int | None = None) -> Weights:
    """The same numbers with a scale, and a zero, for each `group` columns, 32, 64 or 128: of INT4 those of the row or the wider group that they are in. None: the
    largest that divides the columns, of scales for whole rows; others stay. Raises ArgumentError."""
    form, k = weights.format, weights.shape[-1]
    if group is None and (form.group or form.bits == 8):
        return weights
    shared = form.group_of(k)
    wanted = widest_group(k) if group is None else group
    if form.bits == 8:
        raise ArgumentError(
            "group", group, f"must be None for {form.name}: scales of rows stay those of rows"
        )
    if not isinstance(wanted, int) or wanted not in GROUPS or shared % wanted:
        allowed = f"must be {' or '.join(map(str, GROUPS))} and divide the {shared} columns that share a scale"
        raise ArgumentError("group", group, allowed)
    scales = np.repeat(weights.scales, shared // wanted, -1)
    zeros = None if weights.zeros is None else np.repeat(weights.zeros, shared // wanted, -1)
    return replace(weights, format=replace(form, group=wanted), scales=scales, zeros=zeros)


def elements(weights: Weights) -> Floats:
    """Values before they are scaled: [..., N, K]; of INT4 the code less its zero."""
    codes = separate(weights.codes, weights.format)
    if weights.format.element == INT8:
        return codes.view(np.int8).astype(np.float64)
    if weights.format.element == FP8:
        return decode(codes, E4M3)
    if weights.format.element != INT4:
        return e2m1_values(codes)
    group = weights.format.group_of(weights.shape[-1])
    zeros = ZERO if weights.zeros is None else np.repeat(weights.zeros, group, -1).astype(np.int64)
    return (codes.astype(np.int64) - zeros).astype(np.float64)


def dequantise(weights: Weights) -> Floats:
    """The float64 [..., N, K] that `weights` stand for. Exact: at most 32 bits of a significand are used."""
    group = weights.format.group_of(weights.shape[-1])
    scales = np.repeat(scale_values(weights.format, weights.scales), group, -1)
    return elements(weights) * scales * weights.tensor_scale
