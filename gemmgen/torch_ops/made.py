"""New tensors, as operators return them: of sizes that may be symbolic."""

from __future__ import annotations

from typing import Any

from ..ir.dtypes import F32, DType
from ..runtime.torch_tensors import torch, torch_dtype

Sides = tuple[Any, ...]  # numbers or torch.SymInt

ROW = 16  # bytes: rows of a new D, and columns of its scales, begin at multiples of this


def empty(shape: Sides, dtype: DType, device: Any) -> Any:
    """As `runtime.torch_tensors.empty` makes it, which pads rows."""
    *lead, columns = shape
    step = ROW // dtype.bytes
    padded = torch().empty(*lead, ceil(columns, step) * step, device="meta")
    return torch().empty_strided(shape, padded.stride(), dtype=torch_dtype(dtype), device=device)


def column_scales(shape: Sides, device: Any) -> Any:
    """Scales [..., M, blocks] of a new D, contiguous along M."""
    *lead, m, blocks = shape
    return empty((*lead, blocks, m), F32, device).mT


def ceil(x: Any, step: int) -> Any:
    return -(-x // step)
