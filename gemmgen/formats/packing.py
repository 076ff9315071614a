"""Weights of 4 bits in the order in which a warpgroup reads them (`gemmgen.ir.packed`), and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codes import decode, encode
from ..errors import ArgumentError
from ..ir.codings import (
    BITS,
    CODINGS,
    INT4,
    LEFT,
    LOOKUP,
    SCALE_BIAS,
    SHIFTS,
    WORD,
    Coding,
    Lookup,
    coding,
)
from ..ir.dtypes import BF16, DTYPES, E4M3, DType
from ..ir.packed import COLUMNS, E8M0, E8M0_BIAS, PAIRS, ROWS, folded
from .format import Format
from .numbers import Bytes, Floats
from .weights import Weights, dequantise, grouped, joined, scale_type, scale_values, separate

E2M1_SIGN = np.uint8(8)
FRACTION_BITS = E4M3.significand - 1
FRACTION = (1 << FRACTION_BITS) - 1
MOST_E8M0 = 128  # a scale's exponent is stored in a factor of BF16, up to 2^127


@dataclass(frozen=True, kw_only=True, eq=False)
class Packed:
    """Weights [..., rows, columns] of `format` for products with `to`: uint8 blocks [..., ceil(rows / 64), ceil(columns / 128), bytes of a
    block]; what is past the last row or column is 0. bases: int16 [..., rows], where numbers of `to` are to be multiplied by 2^base of their
    row: of MXFP4 for E4M3 and FP16, whose exponents are folded into the numbers as far as they differ in a row; None: 0. factor: what all numbers are to be
    multiplied by, a float32: of NVFP4 its tensor's scale times 2^7."""

    format: Format
    to: DType
    blocks: Bytes
    rows: int
    columns: int
    bases: npt.NDArray[np.int16] | None = None
    factor: float = 1.0


def pack(weights: Weights, to: DType = BF16) -> Packed:
    """`weights` for products with `to`: bf16, f16 or e4m3 (MXFP4); scales of whole rows as those of groups (`grouped`). Raises ArgumentError for a format that is not multiplied
    with it: INT4 and NVFP4 with e4m3, INT4 whose scales are not of `to` (`rescaled`), or of whole rows of columns that are no multiple of 32, MXFP4 for bf16 with an exponent above 128, for e4m3 with a row whose
    exponents span more than 11, for f16 more than 24, groups of zeros apart, NVFP4 with a scale below 0 or a tensor's scale of which 2^7 times is
    none in float32."""
    code = _coding(weights.format, to)
    weights = grouped(weights)
    form = weights.format
    scales, bases = (
        _folded(weights, to) if folded(form.scale, to) else (_records(weights, code), None)
    )
    *lead, n, k = weights.shape
    down, across = -n % ROWS, -k % COLUMNS
    codes = _padded(_kept(weights), down, across, _zero(code))
    rows, columns = codes.shape[-2:]
    tiles = codes.reshape(*lead, rows // ROWS, ROWS, columns // COLUMNS, COLUMNS).swapaxes(-3, -2)
    groups = COLUMNS // form.group
    records = _padded(scales, down, columns // form.group - scales.shape[-1])
    tiled = records.reshape(*lead, rows // ROWS, ROWS, columns // COLUMNS, groups).swapaxes(-3, -2)
    of_pairs = np.ascontiguousarray(tiled[..., _pairs(), :])  # [..., pair, row of it, group]
    octets = of_pairs.view(np.uint8).reshape(*of_pairs.shape[:-3], -1)
    blocks = np.concatenate([_words(tiles, code), octets], -1)
    factor = _factor(weights)
    return Packed(format=form, to=to, blocks=blocks, rows=n, columns=k, bases=bases, factor=factor)


def unpack(packed: Packed) -> Weights:
    """What was packed; of groups of zeros for E4M3 and FP16 the scale may be another."""
    form, code = packed.format, _coding(packed.format, packed.to)
    blocks = packed.blocks
    row, column, bits = places(code)
    size = ROWS * COLUMNS * form.bits // 8
    words = np.ascontiguousarray(blocks[..., :size]).view(np.uint32)
    tiles = np.zeros((*words.shape[:-1], ROWS, COLUMNS), np.uint8)
    fields = sum(
        (words[..., :, None] >> b & 1) << form.bits - 1 - j
        for j, b in enumerate(np.moveaxis(bits, -1, 0))
    )
    tiles[..., row, column] = fields.astype(np.uint8)
    *lead, down, across, _, _ = tiles.shape
    codes = tiles.swapaxes(-3, -2).reshape(*lead, down * ROWS, across * COLUMNS)
    groups = COLUMNS // form.group
    octets = np.ascontiguousarray(blocks[..., size:])
    of_pairs = octets.view(_record_type(form)).reshape(*octets.shape[:-1], PAIRS, 2, groups)
    scales = np.empty((*octets.shape[:-1], ROWS, groups), of_pairs.dtype)
    scales[..., _pairs(), :] = of_pairs
    whole = scales.swapaxes(-3, -2).reshape(*lead, down * ROWS, across * groups)
    records = whole[..., : packed.rows, : packed.columns // form.group]
    kept = np.ascontiguousarray(records)
    if folded(form.scale, packed.to):
        bases = 0 if packed.bases is None else packed.bases[..., None]
        least, _ = SHIFTS[packed.to]
        kept = (kept + (bases + least + E8M0_BIAS)).astype(np.uint8)
    if form.tensor_scaled:
        kept = encode(_lowered(kept), E4M3)
    return Weights(
        format=form,
        codes=joined(codes[..., : packed.rows, : packed.columns], form),
        scales=(kept & 0xFFFF).astype(scale_type(form)) if form.zeros else kept,
        zeros=((kept >> 16) - _magic(code)).astype(np.uint8) if form.zeros else None,
        tensor_scale=packed.factor / 2**LEFT if form.tensor_scaled else 1.0,
    )


def numbers(packed: Packed) -> Floats:
    """What a kernel multiplies by, [..., rows, columns]: what they stand for over the row's and the tensor's factor, rounded once to 16 bits."""
    scale = 2.0**-LEFT if packed.format.tensor_scaled else 1.0
    values = dequantise(unpack(replace(packed, bases=None, factor=2.0**LEFT)))
    return (
        values * scale
        if packed.to == E4M3
        else decode(encode(values * scale, packed.to), packed.to)
    )


def multiplied(weights: Weights, to: DType = BF16) -> Floats:
    """What a kernel multiplies by where scales go into the weights, but for factors of a row or tensor: `dequantise`, each rounded to `to` once
    of INT4; else exactly it."""
    if weights.format.element != INT4:
        return dequantise(weights)
    return decode(encode(dequantise(weights), to), to)


def rescaled(weights: Weights, scale: str) -> Weights:
    """INT4 whose scales are rounded to the dtype `scale`, f16, bf16 or f32. Raises ArgumentError naming the format of other weights, or the scale
    of which there is none or that one overflows."""
    if weights.format.element != INT4:
        raise ArgumentError(
            "format", weights.format.name, "must be INT4: others have one dtype of scales"
        )
    form = replace(weights.format, scale=scale)
    bits = encode(scale_values(weights.format, weights.scales), DTYPES[scale])
    if not np.isfinite(scale_values(form, bits)).all():
        raise ArgumentError("scale", scale, "a scale overflows it")
    return replace(weights, format=form, scales=bits)


@cache
def places(code: Coding | Lookup) -> tuple[Any, Any, Any]:
    """Of each of a block's words and its codes, eight of 4 bits, int [words, codes]: row and column, and where in the word its bits are,
    [words, codes, bits], the highest first."""
    codes = WORD // BITS[code.element]
    words = ROWS * COLUMNS // codes
    found = [code.place(word, j) for word in range(words) for j in range(codes)]
    row, column, bits = (np.array(x) for x in zip(*found, strict=True))
    return row.reshape(-1, codes), column.reshape(-1, codes), bits.reshape(words, codes, -1)


@cache
def tables(code: Coding | Lookup) -> Any:
    """Of each of a word's codes and of each value, the word's bits: uint32, of 4 bits [8, 16]. They are at the same places in every word."""
    _, _, bits = places(code)
    count = bits.shape[-1]
    values = np.arange(1 << count, dtype=np.uint32)
    parts = [(values >> np.uint32(count - 1 - i) & 1) << bits[0, :, i : i + 1].astype(np.uint32) for i in range(count)]  # fmt: skip
    return np.bitwise_or.reduce(parts)


def _words(tiles: Bytes, code: Coding | Lookup) -> Bytes:
    """[..., 64, 128] -> the bytes of a block's codes."""
    row, column, _ = places(code)
    codes = np.ascontiguousarray(tiles).reshape(-1, ROWS * COLUMNS)
    words = np.zeros((len(codes), len(row)), np.uint32)
    for table, at in zip(tables(code), (row * COLUMNS + column).T, strict=True):
        words |= np.take(table, np.take(codes, at, 1))
    return words.view(np.uint8).reshape(*tiles.shape[:-2], 4 * len(row))


def _pairs() -> Any:
    """Rows that are the pairs': int [32, 2]."""
    pair = np.arange(PAIRS)[:, None]
    return 16 * (pair // 8) + pair % 8 + 8 * np.arange(2)


def _records(weights: Weights, code: Coding | Lookup) -> Any:
    """Of each row and group."""
    if weights.format.scale == E8M0 and int(weights.scales.max(initial=0)) > MOST_E8M0:
        raise ArgumentError("scales", int(weights.scales.max()), f"must be at most {MOST_E8M0}")
    if weights.format.tensor_scaled:
        return _lifted(weights)
    if weights.zeros is None:
        return weights.scales
    zeros = weights.zeros.astype(np.uint32) + _magic(code)
    return weights.scales.astype(np.uint32) | zeros << 16


def _lifted(weights: Weights) -> Any:
    """Scales of E4M3 as kernels add to exponents: subnormal ones as if they were none, and 0, whose codes are not kept, as the least."""
    values = scale_values(weights.format, weights.scales)
    if (values < 0).any():
        raise ArgumentError("scales", float(values.min()), "must not be below 0")
    fraction, exponent = np.frexp(values)
    lifted = (exponent - 1 + SCALE_BIAS << FRACTION_BITS) + (2 * fraction - 1) * (FRACTION + 1)
    return np.where(values > 0, lifted, 0).astype(np.uint8)


def _lowered(records: Any) -> Floats:
    """The scales that `_lifted` made so."""
    exponents = (records >> FRACTION_BITS).astype(np.int64) - SCALE_BIAS
    found: Floats = np.ldexp(1 + (records & FRACTION) / (FRACTION + 1), exponents)
    return found


def _kept(weights: Weights) -> Bytes:
    """Codes, of which signs are left where a scale of E4M3 is 0."""
    codes, form = separate(weights.codes, weights.format), weights.format
    if not form.tensor_scaled:
        return codes
    some = scale_values(form, weights.scales) > 0
    kept: Bytes = np.where(np.repeat(some, form.group, -1), codes, codes & E2M1_SIGN)
    return kept


def _factor(weights: Weights) -> float:
    if not weights.format.tensor_scaled:
        return 1.0
    factor = weights.tensor_scale * 2.0**LEFT
    if abs(factor) > float(np.finfo(np.float32).max):
        allowed = f"times {2**LEFT} must be a float32"
        raise ArgumentError("tensor_scale", weights.tensor_scale, allowed)
    return factor


def _folded(weights: Weights, to: DType) -> tuple[Any, Any]:
    """Of each row and group its exponent less its row's, from the least on that is exact, uint8; of each row what it is less by, int16."""
    least, highest = SHIFTS[to]
    group = weights.format.group
    codes = separate(weights.codes, weights.format)
    some = (codes.reshape(*codes.shape[:-1], -1, group) & 7).any(-1)
    exponents = weights.scales.astype(np.int64) - E8M0_BIAS
    most = np.where(some, exponents, -E8M0_BIAS).max(-1, initial=-E8M0_BIAS)
    bases = most - highest
    shifts = exponents - bases[..., None]
    worst = int(np.where(some, shifts, highest).min(initial=highest))
    if worst < least:
        allowed = f"a row's exponents must span at most {highest - least} for {to}"
        raise ArgumentError("scales", highest - worst, allowed)
    kept = np.clip(shifts, least, highest) - least
    return kept.astype(np.uint8), bases.astype(np.int16)


def _zero(code: Coding | Lookup) -> int:
    return code.zero if isinstance(code, Coding) else 0


def _magic(code: Coding | Lookup) -> int:
    return code.magic if isinstance(code, Coding) else 0


def _record_type(form: Format) -> Any:
    return np.dtype(np.uint32) if form.zeros else scale_type(form)


def _padded(x: Any, down: int, across: int, value: int = 0) -> Any:
    """[..., rows + down, columns + across]"""
    widths = [(0, 0)] * (x.ndim - 2) + [(0, down), (0, across)]
    return np.pad(x, widths, constant_values=value)


def _coding(form: Format, to: DType) -> Coding | Lookup:
    known = any((x.element, x.to) == (form.element, to) for x in (*CODINGS, LOOKUP))
    if not known or (form.tensor_scaled and to == E4M3):
        raise ArgumentError("to", to, f"{form.name} is not multiplied with it")
    if form.element == INT4 and form.scale != to.name:
        raise ArgumentError(
            "scales", form.scale, f"must be {to}, as what they are multiplied with: see rescaled"
        )
    return coding(form.element, to)
