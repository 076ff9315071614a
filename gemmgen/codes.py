"""Bit patterns and the numbers they stand for. Every format follows from its row in ir/dtypes.py."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from .ir.dtypes import E4M3, DType

Codes = npt.NDArray[np.unsignedinteger]
Floats = npt.NDArray[np.float64]

UNSIGNED: dict[int, type[np.unsignedinteger]] = {8: np.uint8, 16: np.uint16, 32: np.uint32}
FINITE_ONLY = (E4M3,)  # no infinities, NaN only at the all-ones magnitude; conversions saturate


def code_type(dtype: DType) -> np.dtype[np.unsignedinteger]:
    """The unsigned NumPy type as wide as `dtype`."""
    return np.dtype(UNSIGNED[dtype.bits])


def nan_code(dtype: DType) -> int:
    """The positive quiet NaN that `encode` writes."""
    all_ones = (1 << (dtype.bits - 1)) - 1
    return all_ones if dtype in FINITE_ONLY else _top(dtype) | 1 << (dtype.significand - 2)


def decode(codes: Codes, dtype: DType) -> Floats:
    """The float64 value of each code: any shape in, the same shape out. Exact."""
    if dtype.integer:
        return np.asarray(codes).view(f"i{dtype.bytes}").astype(np.float64)
    bits = np.asarray(codes).astype(np.int64)
    fraction_bits = dtype.significand - 1
    magnitude = bits & ((1 << (dtype.bits - 1)) - 1)
    field, fraction = magnitude >> fraction_bits, magnitude & ((1 << fraction_bits) - 1)
    significand = np.where(field > 0, fraction + (1 << fraction_bits), fraction)
    exponent = np.maximum(field, 1) - 1 + dtype.min_exponent - fraction_bits
    value = np.ldexp(significand.astype(np.float64), exponent)
    value = np.where(magnitude > _top(dtype), np.nan, value)
    if dtype not in FINITE_ONLY:
        value = np.where(magnitude == _top(dtype), np.inf, value)
    return np.where(bits >> (dtype.bits - 1) == 1, -value, value)


def encode(values: npt.NDArray[np.floating], dtype: DType) -> Codes:
    """The code nearest to each value, ties to even; same shape, `code_type(dtype)`.

    Overflow becomes infinity, in e4m3 and integers the extreme value. NaN becomes `nan_code(dtype)`.
    """
    x = np.asarray(values, np.float64)
    if dtype.integer:
        limit = 2.0 ** (dtype.bits - 1)
        return (
            np.clip(np.rint(x), -limit, limit - 1).astype(f"i{dtype.bytes}").view(code_type(dtype))
        )
    size = np.where(np.isfinite(x), np.abs(x), 0.0)
    exponent = _exponent(size, dtype)
    fraction_bits = dtype.significand - 1
    steps = np.rint(np.ldexp(size, fraction_bits - exponent)).astype(np.int64)
    # Consecutive codes are consecutive values, so a carry out of `steps` lands in the exponent.
    magnitude = ((exponent - dtype.min_exponent) << fraction_bits) + steps
    magnitude = np.where(np.isinf(x), _top(dtype), np.minimum(magnitude, _top(dtype)))
    magnitude = np.where(np.isnan(x), nan_code(dtype), magnitude)
    sign = np.signbit(x).astype(np.int64) << (dtype.bits - 1)
    return (magnitude | np.where(np.isnan(x), 0, sign)).astype(code_type(dtype))


@cache
def table(dtype: DType) -> Floats:
    """`decode` of every code of an 8- or 16-bit type: float64 [256] or [65536], read-only."""
    return _frozen(decode(_all_codes(dtype), dtype))


@cache
def exponents(dtype: DType) -> Floats:
    """2^e for every code of an 8- or 16-bit type, e its exponent as the tensor core sees it.

    Subnormals and zeros count as the smallest normal exponent: for zeros that is the larger, hence
    the safe, reading of an exponent field that nobody documents.
    """
    if dtype.integer:
        return _frozen(np.abs(table(dtype)))
    size = np.abs(np.nan_to_num(table(dtype), nan=0.0, posinf=0.0, neginf=0.0))
    return _frozen(np.ldexp(1.0, _exponent(size, dtype)))


@cache
def grains(dtype: DType) -> Floats:
    """For every code of an 8- or 16-bit type the least g for which value * g is an integer: a power of
    two; 0 for zeros and what is not finite."""
    size = np.abs(np.nan_to_num(table(dtype), nan=0.0, posinf=0.0, neginf=0.0))
    fraction, exponent = np.frexp(size)
    digits = np.ldexp(fraction, 53).astype(np.int64)
    last = np.frexp((digits & -digits).astype(np.float64))[1] - 1
    return _frozen(np.where(size > 0, np.ldexp(1.0, 53 - exponent - last), 0.0))


def _top(dtype: DType) -> int:
    """The largest magnitude that is not a NaN: infinity, or 448 for e4m3."""
    all_ones = (1 << (dtype.bits - 1)) - 1
    fraction = (1 << (dtype.significand - 1)) - 1
    return all_ones - 1 if dtype in FINITE_ONLY else all_ones - fraction


def _exponent(size: Floats, dtype: DType) -> npt.NDArray[np.int64]:
    """Of finite values >= 0, as their code has it: subnormals and zero take the smallest."""
    exponent = np.where(size > 0, np.frexp(size)[1] - 1, dtype.min_exponent)
    return np.maximum(exponent, dtype.min_exponent).astype(np.int64)


def _all_codes(dtype: DType) -> Codes:
    return np.arange(1 << dtype.bits).astype(code_type(dtype))


def _frozen(values: Floats) -> Floats:
    values.flags.writeable = False
    return values
