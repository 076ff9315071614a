"""Packed weights of layers of experts, for timing: made of blocks of a pool, where to pack them would take hours. Blocks hold their own scales, so any of
them may stand anywhere. (`coded.drawn` has scales of about 1, by which gates would be as good as open or shut.)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import formats, quant
from ..ir.dtypes import E4M3
from ..ir.packed import BY_BLOCK, COLUMNS, ROWS
from ..runtime.torch_tensors import torch, torch_dtype
from .moe_sizes import FORMS, INT4_BLOCKS, MXFP4_BLOCKS, MXFP4_FP8

POOL = 64  # blocks


@dataclass(frozen=True, kw_only=True)
class Pool:
    """held: [64 * POOL, 128], packed. generator: of which of them are taken, on their device."""

    held: quant.Packed
    generator: Any

    def put(self, blocks: Any, factors: Any) -> None:
        """Into those of a matrix, uint8 [R, C, bytes], and float32 [N], or None."""
        rows, columns, size = blocks.shape
        at = self._any(POOL, rows * columns)
        blocks.copy_(self.held.blocks.view(POOL, size)[at].view(blocks.shape))
        if factors is not None:
            factors.copy_(self.held.factors[self._any(len(self.held.factors), len(factors))])

    def _any(self, most: int, count: int) -> Any:
        device = self.held.blocks.device
        return torch().randint(most, (count,), generator=self.generator, device=device)


def pool(kind: str, spread: float, generator: Any, device: str) -> Pool:
    """Of numbers around 0 whose standard deviation is `spread`."""
    form, given = FORMS[kind], {"generator": generator, "device": device}
    wide = torch().randn(POOL * ROWS, COLUMNS, **given) * spread
    weights = quant.of(wide, formats.named(form.format))
    return Pool(held=quant.pack(weights, torch_dtype(form.to)), generator=generator)


def empty(kind: str, experts: int, rows: int, columns: int, device: str) -> tuple[Any, Any]:
    """Blocks and factors, None where there are none, of all experts."""
    form = FORMS[kind]
    shape = experts, -(-rows // ROWS), -(-columns // COLUMNS), form.block_bytes
    factors = torch().empty(experts, rows, dtype=torch().float32, device=device)
    blocks = torch().empty(shape, dtype=torch().uint8, device=device)
    return blocks, factors if form.factors else None


def told(kind: str) -> dict[str, str]:
    """What `ops.moe` is told of them."""
    by = {MXFP4_FP8: E4M3.name, MXFP4_BLOCKS: BY_BLOCK, INT4_BLOCKS: BY_BLOCK}.get(kind)
    return {"packed": FORMS[kind].name} | ({"activations": by} if by else {})


def numbers(kind: str, blocks: Any, factors: Any, rows: int, columns: int) -> Any:
    """What those of a matrix stand for, float64 [rows, columns]."""
    form = FORMS[kind]
    held = quant.Packed(
        format=formats.named(form.format), dtype=form.to, blocks=blocks, shape=(rows, columns)
    )
    found = held.wide()
    return found if factors is None else found * factors.double().unsqueeze(-1)
