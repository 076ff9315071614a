"""Packed weights that are timed: any codes, scales of groups as other operands have them, and the numbers that they stand for."""

from __future__ import annotations

from typing import Any

from .. import quant
from ..formats import named
from ..ir.codings import FP8, ZERO, Coding
from ..ir.packed import COLUMNS, PAIRS, ROWS, Form
from ..runtime.torch_tensors import torch, torch_dtype
from .data import EXACT, Data

CODES = 2 * ZERO  # of 4 bits
E4M3_NAN = 0x7F  # and with a sign


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
        blocks_of = _finite(codes, data) if form.element == FP8 else codes
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


def _finite(codes: Any, data: Data) -> Any:
    """Codes of E4M3 without NaN; exact ones are from 1 to 15, either sign, of which sums are exact."""
    if data.kind == EXACT:
        return (codes & 0x9F) + 0x38
    return torch().where((codes & E4M3_NAN) == E4M3_NAN, 0, codes)


def _records(form: Form, shape: tuple[int, ...], data: Data) -> Any:
    """One of each row and group, scales of about 1."""

    def integers(first: int, end: int) -> Any:
        return torch().randint(first, end, shape, dtype=torch().int32, device=data.device)

    if form.by in ("shift", "exponent"):
        fraction = integers(0, 1 if data.kind == EXACT else 1 << form.record_bits)
        exponents = integers(-1, 2) + form.record_bias << form.record_bits
        return (exponents + fraction).to(torch().uint8)
    scales = data.scales(*shape).to(torch_dtype(form.to))
    if not form.zeros:
        return scales
    assert isinstance(form.coding, Coding)
    zeros = integers(0, CODES) + form.coding.magic << 16
    return scales.view(torch().int16).int() & 0xFFFF | zeros
