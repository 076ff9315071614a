"""Packed weights that are timed: any codes, scales of groups as other operands have them, and the numbers that they stand for."""

from __future__ import annotations

from typing import Any

from .. import quant
from ..formats import named
from ..ir.codings import FP8, ZERO, Bits, Coding, Sizes
from ..ir.packed import COLUMNS, PAIRS, ROWS, Form
from ..runtime.torch_tensors import torch, torch_dtype
from .data import EXACT, Data

CODES = 2 * ZERO  # of 4 bits


def drawn(form: Form, sides: tuple[int, ...], data: Data) -> quant.Packed:
    """Weights [..., N, K], drawn as blocks: packing so many on the host takes longer than to time them. Exact data are any codes too, by scales
    that are powers of two: with an A of few small integers sums of any order are exact. Raises ArgumentError for a K that is not of whole groups."""
    *lead, n, k = sides
    named(form.format).group_of(k)
    blocks = (*lead, -(-n // ROWS), -(-k // COLUMNS))
    codes = torch().randint(
        0, 256, (*blocks, form.codes_bytes), dtype=torch().uint8, device=data.device
    )
    if form.bits == 8:
        assert isinstance(form.coding, Coding)
        blocks_of = _finite(codes, form.coding.places, data) if form.element == FP8 else codes
        factors = torch().ones(sides[:-1], device=data.device)
        return quant.Packed(
            format=named(form.format), dtype=form.to, blocks=blocks_of, shape=sides, factors=factors
        )
    records = _records(form, (*blocks, PAIRS * 2 * form.groups), data)
    return quant.Packed(
        format=named(form.format),
        dtype=form.to,
        blocks=torch().cat([codes, records.view(torch().uint8)], -1),
        shape=sides,
    )


def sum_scales(form: Form, blocks: Any, sides: tuple[int, ...]) -> Any:
    """Of blocks of weights [..., N, K], what sums over each 128 columns are scaled by, float32 [..., N, ceil(K/128)]; None where weights are scaled themselves."""
    held = quant.Packed(format=named(form.format), dtype=form.to, blocks=blocks, shape=sides)
    return held.sum_scales()


def _finite(codes: Any, places: tuple[Bits, ...], data: Data) -> Any:
    """Codes of E4M3 that lie at `places` of each half of a word, without NaN; exact ones are from 2 to 30, either sign, of which sums are exact."""
    halves = codes.view(torch().int16).int()
    for bits in places:
        _, sixth, fifth, *_, least = (1 << b for b in bits)
        if data.kind == EXACT:
            halves = halves & ~fifth | sixth
            continue
        size = sum(1 << b for b in bits[1:])
        halves = torch().where((halves & size) == size, halves & ~least, halves)
    return halves.to(torch().int16).view(torch().uint8)


def _records(form: Form, shape: tuple[int, ...], data: Data) -> Any:
    """One of each row and group, scales of about 1."""

    def integers(first: int, end: int) -> Any:
        return torch().randint(first, end, shape, dtype=torch().int32, device=data.device)

    if form.by in ("shift", "exponent"):
        fraction = integers(0, 1 if data.kind == EXACT else 1 << form.record_bits)
        exponents = integers(-1, 2) + form.record_bias << form.record_bits
        return (exponents + fraction).to(torch().uint8)
    if form.by == "whole":
        assert isinstance(form.coding, Sizes)
        return data.scales(*shape) * 2.0**form.coding.left
    scales = data.scales(*shape).to(torch_dtype(form.to))
    if not form.zeros:
        return scales
    assert isinstance(form.coding, Coding)
    zeros = integers(0, CODES) + form.coding.magic << 16
    return scales.view(torch().int16).int() & 0xFFFF | zeros
