"""Scales as the copy engine reads them: where they lie if they can be read there, else copied."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import F32
from ..runtime.torch_tensors import dtype_of, mn_major, torch

TMA_BYTES = 16  # addresses and strides of what the copy engine reads


def check_scales(name: str, scales: Any) -> None:
    """Raise ArgumentError unless `scales` are float32 of 2 or 3 dimensions."""
    dtype_of(name, scales, (F32,))
    if scales.dim() not in (2, 3):
        raise ArgumentError(f"{name} shape", tuple(scales.shape), "must have 2 or 3 dimensions")


def scale_layout(name: str, scales: Any) -> str:
    """As `gemmgen.ops` calls it: "mn" if the copy engine can read `scales` where they lie, else "row". Raises ArgumentError."""
    strides = scales.stride() if isinstance(scales, torch().Tensor) else ()
    if len(strides) >= 2 and _in_place(scales, *strides):
        return "mn"
    check_scales(name, scales)
    return "row"


def aligned(name: str, scales: Any) -> Any:
    """float32 [..., rows, blocks], contiguous along the rows, other strides multiples of 16 bytes: `scales`
    themselves if they lie like that (columns and groups may be padded), else a copy. Raises ArgumentError."""
    return scales if scale_layout(name, scales) == "mn" else mn_major(scales)


def _in_place(scales: Any, *strides: int) -> bool:
    *apart, along, column = strides
    fits = along == 1 and column >= scales.shape[-2]
    steps = (*apart, column)
    return fits and all(s > 0 and s % 4 == 0 for s in steps) and scales.data_ptr() % TMA_BYTES == 0
