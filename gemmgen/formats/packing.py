"""Weights of 4 bits in the order in which a warpgroup reads them (`gemmgen.ir.packed`), and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..ir.dtypes import BF16, DTYPES, DType
from ..ir.packed import (
    CODES_BYTES,
    CODINGS,
    COLUMNS,
    PAIRS,
    READ_STEPS,
    REGISTERS,
    ROWS,
    STEP,
    THREADS,
    Coding,
    coding,
)
from ..verification.codes import encode
from .format import E8M0, INT4, ZERO, Format
from .numbers import Bytes, Floats
from .weights import Weights, dequantise, nibbles, paired, scale_type, scale_values

MOST_E8M0 = 128  # a scale's exponent is stored in a factor of BF16, up to 2^127
STEPS = COLUMNS // STEP


@dataclass(frozen=True, kw_only=True, eq=False)
class Packed:
    """Weights [..., rows, columns] of `format` for products with `to`: uint8 blocks [..., ceil(rows / 64), ceil(columns / 128), bytes of a
    block]; what is past the last row or column is 0."""

    format: Format
    to: DType
    blocks: Bytes
    rows: int
    columns: int


def pack(weights: Weights, to: DType = BF16) -> Packed:
    """`weights` for products with `to`, bf16 or f16. Raises ArgumentError for a format that no kernel takes with it: E2M1 with f16, NVFP4, a
    scale for a whole row, INT4 whose scales are not of `to` (`rescaled`), MXFP4 with an exponent above 128."""
    form = weights.format
    code = _coding(form, to)
    if form.scale == E8M0 and int(weights.scales.max(initial=0)) > MOST_E8M0:
        raise ArgumentError("scales", int(weights.scales.max()), f"must be at most {MOST_E8M0}")
    *lead, n, k = weights.shape
    down, across = -n % ROWS, -k % COLUMNS
    zero = ZERO if form.element == INT4 else 0
    codes = _padded(nibbles(weights.codes), down, across, zero)
    rows, columns = codes.shape[-2:]
    tiles = codes.reshape(*lead, rows // ROWS, ROWS, columns // COLUMNS, COLUMNS).swapaxes(-3, -2)
    groups = COLUMNS // form.group
    records = _padded(
        _records(weights, code), down, columns // form.group - weights.scales.shape[-1]
    )
    scales = records.reshape(*lead, rows // ROWS, ROWS, columns // COLUMNS, groups).swapaxes(-3, -2)
    of_pairs = np.ascontiguousarray(scales[..., _pairs(), :])  # [..., pair, row of it, group]
    octets = of_pairs.view(np.uint8).reshape(*of_pairs.shape[:-3], -1)
    blocks = np.concatenate([_words(tiles, code), octets], -1)
    return Packed(format=form, to=to, blocks=blocks, rows=n, columns=k)


def unpack(packed: Packed) -> Weights:
    """What was packed."""
    form, code = packed.format, _coding(packed.format, packed.to)
    blocks = packed.blocks
    row, column, bits = places(code)
    words = np.ascontiguousarray(blocks[..., :CODES_BYTES]).view(np.uint32)
    tiles = np.zeros((*words.shape[:-1], ROWS, COLUMNS), np.uint8)
    fields = sum(
        (words[..., :, None] >> b & 1) << 3 - j for j, b in enumerate(np.moveaxis(bits, -1, 0))
    )
    tiles[..., row, column] = fields.astype(np.uint8)
    *lead, down, across, _, _ = tiles.shape
    codes = tiles.swapaxes(-3, -2).reshape(*lead, down * ROWS, across * COLUMNS)
    groups = COLUMNS // form.group
    octets = np.ascontiguousarray(blocks[..., CODES_BYTES:])
    of_pairs = octets.view(_record_type(form)).reshape(*octets.shape[:-1], PAIRS, 2, groups)
    scales = np.empty((*octets.shape[:-1], ROWS, groups), of_pairs.dtype)
    scales[..., _pairs(), :] = of_pairs
    whole = scales.swapaxes(-3, -2).reshape(*lead, down * ROWS, across * groups)
    records = whole[..., : packed.rows, : packed.columns // form.group]
    kept = np.ascontiguousarray(records)
    return Weights(
        format=form,
        codes=paired(codes[..., : packed.rows, : packed.columns]),
        scales=(kept & 0xFFFF).astype(scale_type(form)) if form.zeros else kept,
        zeros=((kept >> 16) - code.magic).astype(np.uint8) if form.zeros else None,
    )


def multiplied(weights: Weights, to: DType = BF16) -> Floats:
    """What a kernel multiplies by where scales go into the weights: `dequantise`, each rounded to `to` once."""
    codes = encode(dequantise(weights), to)
    return scale_values(Format(element=INT4, group=0, scale=to.name), codes)


def rescaled(weights: Weights, scale: str) -> Weights:
    """INT4 whose scales are rounded to the dtype `scale`, f16, bf16 or f32. Raises ArgumentError for other weights, and where one overflows."""
    if weights.format.element != INT4:
        raise ArgumentError(
            "format", weights.format.name, "must be INT4: others have one dtype of scales"
        )
    form = Format(element=INT4, group=weights.format.group, scale=scale, zeros=weights.format.zeros)
    bits = encode(scale_values(weights.format, weights.scales), DTYPES[scale])
    return Weights(format=form, codes=weights.codes, scales=bits, zeros=weights.zeros)


def places(code: Coding) -> tuple[Any, Any, Any]:
    """Of each of a block's 1024 words and its eight codes, int [1024, 8]: row and column, and where in the word its bits are,
    [1024, 8, 4], the highest first."""
    word, j = np.arange(CODES_BYTES // 4)[:, None], np.arange(2 * REGISTERS)[None, :]
    half, register = j // REGISTERS, j % REGISTERS
    thread = word // READ_STEPS % THREADS
    step = word // (READ_STEPS * THREADS) * READ_STEPS + word % READ_STEPS
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register % 2)
    column = STEP * step + 2 * (thread % 4) + 8 * (register // 2) + half
    bits = np.array(code.places)[register] + 16 * half[..., None]
    return row, column, np.broadcast_to(bits, (*row.shape, 4))


def _words(tiles: Bytes, code: Coding) -> Bytes:
    """[..., 64, 128] -> the bytes of a block's codes."""
    row, column, bits = places(code)
    codes = tiles[..., row, column].astype(np.uint32)
    fields = sum(
        (codes >> np.uint32(3 - j) & 1) << b.astype(np.uint32)
        for j, b in enumerate(np.moveaxis(bits, -1, 0))
    )
    words = np.bitwise_or.reduce(fields, -1)
    return np.ascontiguousarray(words, np.uint32).view(np.uint8)


def _pairs() -> Any:
    """Rows that are the pairs': int [32, 2]."""
    pair = np.arange(PAIRS)[:, None]
    return 16 * (pair // 8) + pair % 8 + 8 * np.arange(2)


def _records(weights: Weights, code: Coding) -> Any:
    if weights.zeros is None:
        return weights.scales
    return weights.scales.astype(np.uint32) | (weights.zeros.astype(np.uint32) + code.magic) << 16


def _record_type(form: Format) -> Any:
    return np.dtype(np.uint32) if form.zeros else scale_type(form)


def _padded(x: Any, down: int, across: int, value: int = 0) -> Any:
    """[..., rows + down, columns + across]"""
    widths = [(0, 0)] * (x.ndim - 2) + [(0, down), (0, across)]
    return np.pad(x, widths, constant_values=value)


def _coding(form: Format, to: DType) -> Coding:
    if not any((x.element, x.to) == (form.element, to) for x in CODINGS) or form.tensor_scaled:
        raise ArgumentError("to", to, f"no kernel multiplies {form.name} with it")
    if form.element == INT4 and form.scale != to.name:
        raise ArgumentError(
            "scales", form.scale, f"must be {to}, as what they are multiplied with: see rescaled"
        )
    if not form.group:
        raise ArgumentError(
            "group", form.group, "must be 32, 64 or 128: a block of weights is 128 columns"
        )
    return coding(form.element, to)
