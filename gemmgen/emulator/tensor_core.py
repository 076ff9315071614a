"""What one wgmma computes, bit for bit: 64 x N outputs, each the sum of K products and c.

The floating-point sum is fused: every product is exact, all K + 1 terms are aligned to the largest
exponent among them and cut off `aligned` bits below it, the aligned terms are added exactly, and the
sum is cut to `kept` bits after its leading one. (Peichen Xie et al., "MMA-Sim", arXiv 2511.10909,
found this by experiment; NVIDIA does not document it.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .operand_formats import (
    NO_EXPONENT,
    Codes,
    Float64s,
    Floats,
    Int16s,
    Int64s,
    Table,
    Zero,
    table,
)

Result = npt.NDArray[Any]  # float32, or int32 for s8

NAN_BITS = 0x7FFFFFFF  # the only NaN the tensor core returns
F32_MIN_EXPONENT = -126
F32_LARGEST = np.finfo(np.float32).max
BLAS_THREADS_FROM = 1 << 18  # multiplications, in OpenBLAS


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The arithmetic of one kind of operand. Every field that is not plain from the PTX ISA is a
    switch, so that a measurement can decide it; the defaults are what an H200 does."""

    aligned: int  # fraction bits kept below the largest exponent
    kept: int  # fraction bits of the result
    c_aligned: int | None = None  # of c; None: as many as of the products
    lowest: int = -132  # the alignment exponent never falls below
    zero: Zero = "ignored"  # "field": a zero has its format's least exponent
    cut: Literal["truncate", "floor"] = "truncate"  # of the aligned terms
    rounding: Literal["truncate", "nearest"] = "truncate"  # of the result
    overflow: Literal["infinity", "largest"] = "infinity"
    zero_sign: Literal["positive", "signed"] = "positive"  # "signed": -0 if all terms are cut to -0
    underflow_sign: Literal["kept", "positive"] = "positive"  # of a negative result cut to zero
    small: Literal["kept", "flushed"] = "kept"  # FP32-subnormal results
    small_c: Literal["kept", "flushed"] = "kept"  # FP32-subnormal c


FP8 = Arithmetic(aligned=13, kept=13)
HALF = Arithmetic(aligned=25, kept=23)
ARITHMETIC = {"e4m3": FP8, "e5m2": FP8, "f16": HALF, "bf16": HALF}


def mma(
    a: Codes,
    b: Codes,
    c: Result | None,
    a_type: str,
    b_type: str,
    arithmetic: Arithmetic | None = None,
) -> Result:
    """One wgmma step: float32 [64, N] from codes [64, K] and [N, K] and float32 [64, N].

    Codes are uint8 for 8-bit types and uint16 for 16-bit ones; K is 32 bytes. c is None for
    scale-d = 0. For 's8', c and the result are int32 and wrap. Any number of rows will do.
    """
    if a_type == "s8":
        return _integers(a, b, c)
    rules = arithmetic or ARITHMETIC[a_type]
    # K outermost: each of its 16 or 32 slices is then a few vector operations over all outputs.
    a, b = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
    x, y = table(a_type, rules.zero), table(b_type, rules.zero)
    if c is not None and rules.small_c == "flushed":
        c = np.where(np.abs(c) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), c), c)
    finite_c = None if c is None else np.where(np.isfinite(c), c, np.float32(0))
    largest = _largest_exponent(x.exponents[a], y.exponents[b], finite_c, rules)
    total = _aligned_sum(x.values[a], y.values[b], finite_c, largest, rules)
    result = _rounded(total * _power(largest - rules.aligned), rules)
    return _with_specials(result, a, b, c, x, y)


def mma_block(
    a: Codes,
    b: Codes,
    c: Result | None,
    a_type: str,
    b_type: str,
    steps: int,
    arithmetic: Arithmetic | None = None,
) -> Result:
    """`steps` wgmmas in a row over codes [64, steps * K] and [N, steps * K]: the bits of chaining
    `mma`, in one matrix product where no step cuts anything (small integers, for instance)."""
    if a_type == "s8":
        return _integers(a, b, c)
    rules = arithmetic or ARITHMETIC[a_type]
    if (exact := _exact(a, b, c, a_type, b_type, rules)) is not None:
        return exact
    k = a.shape[1] // steps
    for start in range(0, steps * k, k):
        step = slice(start, start + k)
        c = mma(a[:, step], b[:, step], c, a_type, b_type, rules)
    assert c is not None
    return c


def _largest_exponent(a: Int16s, b: Int16s, c: Result | None, rules: Arithmetic) -> Int64s:
    """The exponent the terms of each output are aligned to, [M, N], of exponents [K, M], [K, N].

    A product's is the sum of its factors' exponents: its significand is in [1, 4), not [1, 2).
    """
    largest = np.full((a.shape[1], b.shape[1]), rules.lowest, np.int16)
    if c is not None:
        np.maximum(largest, _exponents_of_c(c, rules), out=largest)
    sums = np.empty_like(largest)
    for x, y in zip(a, b, strict=True):
        np.add(x[:, None], y, out=sums)
        np.maximum(largest, sums, out=largest)
    return largest.astype(np.int64)


def _exponents_of_c(c: Result, rules: Arithmetic) -> Int16s:
    field = c.view(np.int32) >> 23 & 0xFF
    exponents: Int16s = (np.maximum(field, 1) - 127).astype(np.int16)
    if rules.zero == "ignored":
        exponents[c == 0] = NO_EXPONENT
    return exponents


def _aligned_sum(
    a: Floats, b: Floats, c: Result | None, largest: Int64s, rules: Arithmetic
) -> Float64s:
    """The sum of the cut terms of each output, an integer in units of 2^(largest - aligned).

    Exact: |term| < 4 * 2^aligned, so K + 1 of them stay under 2^21 (FP8) and 2^32 (16-bit).
    """
    cut = np.trunc if rules.cut == "truncate" else np.floor
    # Where a power leaves the type's range all products are zero, or all are cut to nothing.
    scale = _power(rules.aligned - largest, a.dtype.type)
    # Adding to -0.0 keeps a sum of only -0.0 negative; adding to 0.0 does not.
    total = np.full(largest.shape, -0.0 if rules.zero_sign == "signed" else 0.0, a.dtype)
    term = np.empty_like(total)
    for x, y in zip(a, b, strict=True):
        np.multiply(x[:, None], y, out=term)
        np.multiply(term, scale, out=term)
        cut(term, out=term)
        np.add(total, term, out=total)
    exact = total.astype(np.float64)
    if c is None:
        return exact
    bits = _c_bits(rules)
    return exact + cut(c * _power(bits - largest)) * 2.0 ** (rules.aligned - bits)


def _c_bits(rules: Arithmetic) -> int:
    return rules.aligned if rules.c_aligned is None else rules.c_aligned


def _power(exponent: Int64s, work: type[np.floating[Any]] = np.float64) -> Floats:
    """2^exponent, the exponent held within the type's normal range."""
    info = np.finfo(work)
    fraction, integer = info.nmant, np.int32 if info.bits == 32 else np.int64
    field = np.clip(exponent, info.minexp, info.maxexp - 1) + (info.maxexp - 1)
    power: Floats = (field.astype(integer) << integer(fraction)).view(work)
    return power


def _rounded(value: Float64s, rules: Arithmetic) -> Result:
    """float32 with `kept` fraction bits below the leading one, or below 2^-126 if that is larger."""
    exponent = (value.view(np.int64) >> 52 & 0x7FF) - 1023
    quantum = _power(np.maximum(exponent, F32_MIN_EXPONENT) - rules.kept)
    cut = np.trunc if rules.rounding == "truncate" else np.rint
    value = cut(value / quantum) * quantum
    if rules.small == "flushed":
        value = np.where(np.abs(value) < 2.0**F32_MIN_EXPONENT, np.copysign(0.0, value), value)
    if rules.underflow_sign == "positive":
        value = value + 0.0
    with np.errstate(over="ignore"):
        result = value.astype(np.float32)
    if rules.overflow == "largest":
        result = np.clip(result, -F32_LARGEST, F32_LARGEST)
    return result


def _with_specials(
    result: Result, a: Codes, b: Codes, c: Result | None, x: Table, y: Table
) -> Result:
    """`result` where no operand is infinite or NaN; IEEE's answer, with one NaN, elsewhere."""
    ks = np.flatnonzero(x.special[a].any(1) | y.special[b].any(1))
    if not ks.size and (c is None or np.isfinite(c).all()):
        return result
    special = np.zeros_like(result) if c is None else np.where(np.isfinite(c), np.float32(0), c)
    with np.errstate(invalid="ignore"):
        for k in ks:
            special += x.signs[a[k]][:, None] * y.signs[b[k]]
    result = np.where(np.isfinite(special), result, special)
    result.view(np.uint32)[np.isnan(special)] = NAN_BITS
    return result


def _exact(
    a: Codes, b: Codes, c: Result | None, a_type: str, b_type: str, rules: Arithmetic
) -> Result | None:
    """The sum by one matrix product, or None unless every chain of steps would be exact.

    It is if all terms are multiples of a power of two 2^unit, and no exponent the alignment may
    see, nor any partial sum, reaches more than the cuts' width above it.
    """
    x, y = table(a_type, rules.zero), table(b_type, rules.zero)
    if rules.zero_sign != "positive" or x.special[a].any() or y.special[b].any():
        return None
    unit = int(x.lowest_bits[a].min()) + int(y.lowest_bits[b].min())
    width = min(rules.aligned, rules.kept, _c_bits(rules))
    if not F32_MIN_EXPONENT <= unit <= 127 - width:  # all-zero operands are above: no matter
        return None
    top = max(int(x.exponents[a].max()) + int(y.exponents[b].max()), rules.lowest)
    left, right = (t.values[codes].astype(np.float32) for t, codes in ((x, a), (y, b)))
    bound = float(np.abs(left).max()) * float(np.abs(right).max()) * a.shape[1]
    if c is not None:
        if not _multiples(c, unit):
            return None
        bound += float(np.abs(c).max())
    if top > unit + width or not bound < 2.0 ** (unit + width + 1):
        return None
    products: Result = _product(left, right) + np.float32(0)  # no -0.0
    return products if c is None else products + c


def _product(a: Floats, b: Floats) -> Floats:
    """a @ b.T in slices of K so thin that BLAS keeps to this thread: where all cores are busy, waking
    its others costs fifty times the work."""
    thin = max(BLAS_THREADS_FROM // (a.shape[0] * b.shape[0]), 1)
    slices = [slice(k, k + thin) for k in range(0, a.shape[1], thin)]
    total: Floats = a[:, slices[0]] @ b[:, slices[0]].T
    for k in slices[1:]:
        total += a[:, k] @ b[:, k].T
    return total


def _multiples(c: Result, unit: int) -> bool:
    """Whether all of c is finite and a multiple of 2^unit."""
    if not np.isfinite(c).all():
        return False
    units = c.astype(np.float64) * 2.0**-unit
    return bool((units == np.rint(units)).all())


def _integers(a: Codes, b: Codes, c: Result | None) -> Result:
    """int32 [M, N], modulo 2^32; exact in float64 for any K a kernel may have."""
    left, right = (x.view(np.int8).astype(np.float64) for x in (a, b))
    total = _product(left, right).astype(np.int64)
    wrapped: Result = (total if c is None else total + c).astype(np.int32)
    return wrapped
