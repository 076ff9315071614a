"""Operands whose B is weights of 4 or 8 bits: what they are packed from, and the numbers that a kernel multiplies by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..codes import Codes, decode, encode
from ..formats import Weights, e2m1, elements, multiplied, named, pack, paired, sum_scales
from ..ir.codings import INT4, INT8, ZERO
from ..ir.dtypes import DTYPES, E4M3
from ..ir.packed import COLUMNS, E8M0, E8M0_BIAS, Form

X = Any  # an `Operands`
CODES = 16  # of 4 bits
MOST = 4  # of an exact number by its scale, either sign
HALVED = 2  # of exact numbers scales are 1, or half of it
LEAST, MOST_EXPONENT = -2, 1  # of drawn scales
E4M3_NAN = 0x7F  # and with a sign


def exactly(x: X, form: Form, seed: int) -> X:
    """`x`, whose b [N, K] has only 0, 1 and 2, of either sign, packed: half of the scales are 1/2, which codes make up for, and zeros are drawn.
    Of 8 bits scales are the epilogue's: 1."""
    rng = np.random.Generator(np.random.PCG64(seed))
    k = x.b.shape[1]
    values = np.pad(decode(x.b, form.to), ((0, 0), (0, -k % COLUMNS)))
    if form.bits == 8:
        codes = values.astype(np.int8) if form.element == INT8 else encode(values, E4M3)
        return _of_rows(x, form, codes.view(np.uint8))
    n, columns = values.shape
    halved = rng.integers(0, HALVED, (n, columns // form.group))
    scaled = values * np.repeat(1 << halved, form.group, 1)
    scales = _scales(form, -halved.astype(np.float64))
    if form.element != INT4:
        return _packed(x, form, e2m1(scaled), scales, None)
    zeros = rng.integers(MOST, CODES - MOST, halved.shape) if form.zeros else None
    zero = ZERO if zeros is None else np.repeat(zeros, form.group, 1)
    return _packed(x, form, scaled.astype(np.int64) + zero, scales, zeros)


def randomly(x: X, form: Form, seed: int) -> X:
    """`x` with any codes, zeros, and scales from 1/4 to 2, as b."""
    rng = np.random.Generator(np.random.PCG64(seed))
    n, k = x.b.shape
    if form.bits == 8:
        octets = rng.integers(0, 256, (n, k + -k % COLUMNS), np.uint8)
        nan = (form.element != INT8) & ((octets & E4M3_NAN) == E4M3_NAN)
        return _of_rows(x, form, np.where(nan, 0, octets).astype(np.uint8))
    codes = rng.integers(0, CODES, (n, k + -k % COLUMNS))
    of_groups = (n, codes.shape[1] // form.group)
    whole = form.scale == E8M0
    exponents = (
        rng.integers(LEAST, MOST_EXPONENT + 1, of_groups)
        if whole
        else rng.uniform(LEAST, MOST_EXPONENT, of_groups)
    )
    zeros = rng.integers(0, CODES, of_groups) if form.zeros else None
    return _packed(x, form, codes, _scales(form, exponents.astype(np.float64)), zeros)


def _scales(form: Form, exponents: Any) -> Codes:
    """2^`exponents`, as they are stored."""
    if form.scale == E8M0:
        codes: Codes = (exponents + E8M0_BIAS).astype(np.uint8)
        return codes
    return encode(np.exp2(exponents), DTYPES[form.scale])


def _of_rows(x: X, form: Form, codes: Any) -> X:
    """Of 8 bits, whose numbers lack no more than what each of them does."""
    ones = np.ones((len(codes), 1), np.float32).view(np.uint32)
    weights = Weights(format=named(form.format), codes=codes, scales=ones)
    numbers = elements(weights)[:, : x.b.shape[1]] * 2.0**-form.left
    return replace(x, b=encode(numbers, form.to), blocks=pack(weights, form.to).blocks)


def _packed(x: X, form: Form, codes: Any, scales: Codes, zeros: Any) -> X:
    weights = Weights(
        format=named(form.format),
        codes=paired(codes.astype(np.uint8)),
        scales=scales,
        zeros=None if zeros is None else zeros.astype(np.uint8),
    )
    packed = pack(weights, form.to)
    if (of_sums := sum_scales(weights, form.to)) is not None:
        x = replace(x, scale_b=of_sums, rows_per_scale=1)
    numbers = multiplied(weights, form.to)[:, : x.b.shape[1]]
    # Factors of a row or tensor are no kernel's: an epilogue's.
    if packed.bases is not None:
        numbers = np.ldexp(numbers, -packed.bases[:, None].astype(int))
    return replace(x, b=encode(numbers / packed.factor, form.to), blocks=packed.blocks)
