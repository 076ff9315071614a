"""Weights of 4 and 8 bits in the order in which a warpgroup reads them (`gemmgen.ir.packed`), and back."""

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
    INT4,
    INT8,
    KNOWN,
    LEFT,
    SHIFTS,
    WORD,
    ZERO,
    AnyCoding,
    Coding,
    Sizes,
    coding,
)
from ..ir.dtypes import BF16, E4M3, F32, DType
from ..ir.packed import COLUMN, COLUMNS, E8M0_BIAS, PAIRS, ROWS, Form, folded
from .format import Format
from .numbers import Bytes, Floats
from .records import (
    factor_of,
    folded_exponents,
    lowered,
    magic,
    of_rows,
    record_type,
    records_of,
)
from .weights import (
    Weights,
    dequantise,
    elements,
    grouped,
    joined,
    scale_type,
    scale_values,
    separate,
)

E2M1_SIGN = np.uint8(8)
ALL = 2 * ZERO - 1  # bits of a code


@dataclass(frozen=True, kw_only=True, eq=False)
class Packed:
    """Weights [..., rows, columns] of `format` for products with `to`: uint8 blocks [..., ceil(rows / 64), ceil(columns / 128), bytes of a
    block]; what is past the last row or column is 0. bases: int16 [..., rows], where numbers of `to` are to be multiplied by 2^base of their
    row: of MXFP4 for E4M3 and FP16, whose exponents are folded into the numbers as far as they differ in a row; None: 0. factor: what all numbers are to be
    multiplied by, a float32: of NVFP4 its tensor's scale times 2^7. scales: float32 [..., rows], of 8 bits what numbers of each row are to be
    multiplied by: its scale, of E4M3 for FP16 times 2^8; None: 1."""

    format: Format
    to: DType
    blocks: Bytes
    rows: int
    columns: int
    bases: npt.NDArray[np.int16] | None = None
    factor: float = 1.0
    scales: npt.NDArray[np.float32] | None = None

    @property
    def left(self) -> int:
        """log2 of what numbers are less by than their codes' values, of 8 bits."""
        f = self.format
        return Form(element=f.element, to=self.to, group=f.group, zeros=f.zeros).left


def pack(weights: Weights, to: DType = BF16) -> Packed:
    """`weights` for products with `to`: bf16, f16 or e4m3 (MXFP4, and INT4 with scales in f32 of 128 columns; no weights of 8 bits); scales of whole rows as those of groups (`grouped`). Raises ArgumentError for a format that is not multiplied
    with it: NVFP4 with e4m3, INT4 with zeros, groups of 32 or 64 or a scale of which 2^9 times is no float32 with e4m3, INT4 whose scales are not of `to`, for e4m3 of f32 (`rescaled`), or of whole rows of columns that are no multiple of 32, MXFP4 for bf16 with an exponent above 128, for e4m3 with a row whose
    exponents span more than 11, for f16 more than 24, groups of zeros apart, NVFP4 with a scale below 0 or a tensor's scale of which 2^7 times is
    none in float32, E4M3 for f16 with a scale of which 2^8 times is none."""
    code = coding_for(weights.format, to)
    weights = grouped(weights, COLUMNS if isinstance(code, Sizes) else None)
    form = weights.format
    n, k = weights.shape[-2:]
    words = _words(_tiles(_kept(weights, code), _zero(code)), code)
    if form.bits == 8:
        alone = Packed(format=form, to=to, blocks=words, rows=n, columns=k)
        return replace(alone, scales=of_rows(weights, alone.left))
    scales, bases = (
        folded_exponents(weights, to)
        if folded(form.scale, to)
        else (records_of(weights, code), None)
    )
    groups = COLUMNS // form.group
    tiled = _tiles(scales, 0, groups)
    of_pairs = np.ascontiguousarray(tiled[..., row_pairs(), :])  # [..., pair, row of it, group]
    octets = of_pairs.view(np.uint8).reshape(*of_pairs.shape[:-3], -1)
    blocks = np.concatenate([words, octets], -1)
    factor = factor_of(weights)
    return Packed(format=form, to=to, blocks=blocks, rows=n, columns=k, bases=bases, factor=factor)


def unpack(packed: Packed) -> Weights:
    """What was packed; of groups of zeros for E4M3 and FP16 the scale may be another."""
    form, code = packed.format, coding_for(packed.format, packed.to)
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
    codes = _unturned(codes) if isinstance(code, Sizes) else codes
    held = joined(codes[..., : packed.rows, : packed.columns], form)
    if form.bits == 8:
        least = np.uint8(_zero(code))
        return Weights(format=form, codes=held ^ least, scales=_scales_of(packed)[..., None])
    groups = COLUMNS // form.group
    octets = np.ascontiguousarray(blocks[..., size:])
    of_pairs = octets.view(record_type(form)).reshape(*octets.shape[:-1], PAIRS, 2, groups)
    scales = np.empty((*octets.shape[:-1], ROWS, groups), of_pairs.dtype)
    scales[..., row_pairs(), :] = of_pairs
    whole = scales.swapaxes(-3, -2).reshape(*lead, down * ROWS, across * groups)
    records = whole[..., : packed.rows, : packed.columns // form.group]
    kept = np.ascontiguousarray(records)
    if isinstance(code, Sizes):
        kept = np.ldexp(kept.view(np.float32), -code.left).view(np.uint32)
    if folded(form.scale, packed.to):
        bases = 0 if packed.bases is None else packed.bases[..., None]
        least, _ = SHIFTS[packed.to]
        kept = (kept + (bases + least + E8M0_BIAS)).astype(np.uint8)
    if form.tensor_scaled:
        kept = encode(lowered(kept), E4M3)
    return Weights(
        format=form,
        codes=held,
        scales=(kept & 0xFFFF).astype(scale_type(form)) if form.zeros else kept,
        zeros=((kept >> 16) - magic(code)).astype(np.uint8) if form.zeros else None,
        tensor_scale=packed.factor / 2**LEFT if form.tensor_scaled else 1.0,
    )


def numbers(packed: Packed) -> Floats:
    """What a kernel multiplies by, [..., rows, columns]: what they stand for over the row's and the tensor's factor, rounded once to 16 bits."""
    if packed.format.bits == 8:
        return dequantise(unpack(replace(packed, scales=None)))
    code = coding_for(packed.format, packed.to)
    if isinstance(code, Sizes):
        return elements(unpack(packed)) * 2.0**-code.left
    scale = 2.0**-LEFT if packed.format.tensor_scaled else 1.0
    values = dequantise(unpack(replace(packed, bases=None, factor=2.0**LEFT)))
    return (
        values * scale
        if packed.to == E4M3
        else decode(encode(values * scale, packed.to), packed.to)
    )


@cache
def places(code: AnyCoding) -> tuple[Any, Any, Any]:
    """Of each of a block's words and its codes, eight of 4 bits, int [words, codes]: row and column, and where in the word its bits are,
    [words, codes, bits], the highest first."""
    codes = WORD // BITS[code.element]
    words = ROWS * COLUMNS // codes
    found = [code.place(word, j) for word in range(words) for j in range(codes)]
    row, column, bits = (np.array(x) for x in zip(*found, strict=True))
    return row.reshape(-1, codes), column.reshape(-1, codes), bits.reshape(words, codes, -1)


@cache
def tables(code: AnyCoding) -> Any:
    """Of each of a word's codes and of each value, the word's bits: uint32, of 4 bits [8, 16]. They are at the same places in every word."""
    _, _, bits = places(code)
    count = bits.shape[-1]
    values = np.arange(1 << count, dtype=np.uint32)
    parts = [(values >> np.uint32(count - 1 - i) & 1) << bits[0, :, i : i + 1].astype(np.uint32) for i in range(count)]  # fmt: skip
    return np.bitwise_or.reduce(parts)


def _words(tiles: Bytes, code: AnyCoding) -> Bytes:
    """[..., 64, 128] -> the bytes of a block's codes."""
    row, column, _ = places(code)
    codes = np.ascontiguousarray(tiles).reshape(-1, ROWS * COLUMNS)
    words = np.zeros((len(codes), len(row)), np.uint32)
    for table, at in zip(tables(code), (row * COLUMNS + column).T, strict=True):
        words |= np.take(table, np.take(codes, at, 1))
    return words.view(np.uint8).reshape(*tiles.shape[:-2], 4 * len(row))


def _tiles(x: Any, fill: int, columns: int = COLUMNS) -> Any:
    """[..., rows, all columns] -> [..., down, across, 64, columns]; what is past the last is `fill`."""
    *lead, n, k = x.shape
    padded = _padded(x, -n % ROWS, -k % columns, fill)
    rows, all_columns = padded.shape[-2:]
    shape = (*lead, rows // ROWS, ROWS, all_columns // columns, columns)
    return padded.reshape(shape).swapaxes(-3, -2)


def row_pairs() -> Any:
    """Rows of a block that are the pairs' whose records lie side by side: int [32, 2]."""
    pair = np.arange(PAIRS)[:, None]
    return 16 * (pair // 8) + pair % 8 + 8 * np.arange(2)


def _kept(weights: Weights, code: AnyCoding) -> Bytes:
    """Codes, of which signs are left where a scale of E4M3 is 0; of INT8 as they are for numbers that have room, from 0 on."""
    codes, form = separate(weights.codes, weights.format), weights.format
    if form.element == INT8:
        stored: Bytes = codes ^ np.uint8(_zero(code))
        return stored
    if isinstance(code, Sizes):
        return _turned(codes)
    if not form.tensor_scaled:
        return codes
    some = scale_values(form, weights.scales) > 0
    kept: Bytes = np.where(np.repeat(some, form.group, -1), codes, codes & E2M1_SIGN)
    return kept


def _turned(codes: Bytes) -> Bytes:
    """Codes of INT4 as a sign and what a number is, or is less than -1 by."""
    found: Bytes = codes ^ np.where(codes & ZERO, ZERO, ALL).astype(np.uint8)
    return found


def _unturned(stored: Bytes) -> Bytes:
    """And back."""
    found: Bytes = stored ^ np.where(stored & ZERO, ALL, ZERO).astype(np.uint8)
    return found


def _scales_of(packed: Packed) -> Any:
    """The inverse of `of_rows`, in bits; factors are 1 where there are none."""
    shape = (*packed.blocks.shape[:-3], packed.rows)
    factors = np.ones(shape, np.float32) if packed.scales is None else packed.scales
    return np.ascontiguousarray(np.ldexp(factors, -packed.left)).view(np.uint32)


def _zero(code: AnyCoding) -> int:
    return code.zero if isinstance(code, Coding) else 0


def _padded(x: Any, down: int, across: int, value: int = 0) -> Any:
    """[..., rows + down, columns + across]"""
    widths = [(0, 0)] * (x.ndim - 2) + [(0, down), (0, across)]
    return np.pad(x, widths, constant_values=value)


def coding_for(form: Format, to: DType) -> AnyCoding:
    """Raises ArgumentError for a format that is not packed for products with `to`."""
    known = any((x.element, x.to) == (form.element, to) for x in KNOWN)
    if not known or (form.tensor_scaled and to == E4M3):
        raise ArgumentError("to", to, f"{form.name} is not multiplied with it")
    found = coding(form.element, to)
    sums = isinstance(found, Sizes)
    if sums and (form.group not in (COLUMN, COLUMNS) or form.zeros):
        allowed = f"{form.name} is not multiplied with it: INT4 has a scale for each {COLUMNS} columns then, or whole rows, and no zeros"
        raise ArgumentError("to", to, allowed)
    wanted = F32 if sums else to
    if form.element == INT4 and form.scale != wanted.name:
        raise ArgumentError(
            "scales", form.scale, f"must be {wanted}, for products with {to}: see rescaled"
        )
    return found
