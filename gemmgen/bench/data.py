"""What the operands hold: random numbers as they are timed, or integers whose products are exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import DType
from ..runtime.torch_tensors import torch, torch_dtype

KINDS = ("normal", "uniform")
EXACT = "exact"  # for verification only
PRODUCTS = 24  # nonzero ones per element of D, in the mean, of exact data


@dataclass(frozen=True, kw_only=True)
class Data:
    """Draws tensors on the current CUDA device (`device`: another, for tests).

    kind: "normal", N(0, 1); "uniform", U[-1, 1); both rounded to the operand's dtype, and for INT8 all
    256 codes alike. Scales are U[0.5, 1.5). "exact": operands in {-1, 0, 1}, scales powers of two, so
    that a sum of any order is exact in FP32.
    """

    kind: str = "normal"
    device: str = "cuda"

    def __post_init__(self) -> None:
        if self.kind not in (*KINDS, EXACT):
            raise ArgumentError("--data", self.kind, f"must be one of {', '.join(KINDS)}")

    def operand(self, *shape: int, dtype: DType, depth: int) -> Any:
        """`shape` of `dtype`; depth: how many of its elements one sum takes, K."""
        return self._values(shape, dtype, depth).to(torch_dtype(dtype))

    def scales(self, *shape: int) -> Any:
        """float32 `shape`, contiguous."""
        if self.kind == EXACT:
            return torch().exp2(torch().randint(-1, 2, shape, device=self.device).float())
        return torch().rand(*shape, device=self.device) + 0.5

    def row_scales(self, *shape: int) -> Any:
        """float32 [..., rows, blocks], contiguous along the rows, columns at multiples of 16 bytes."""
        *lead, rows, blocks = shape
        pitch = -(-rows // 4) * 4
        return self.scales(*lead, blocks, pitch)[..., :rows].mT

    def _values(self, shape: tuple[int, ...], dtype: DType, depth: int) -> Any:
        if self.kind == EXACT:
            signs = 2 * torch().randint(0, 2, shape, device=self.device, dtype=torch().int8) - 1
            density = min(1.0, math.sqrt(PRODUCTS / depth))
            return (signs * (torch().rand(*shape, device=self.device) < density)).float()
        if dtype.integer:
            return torch().randint(-128, 128, shape, device=self.device, dtype=torch().int8)
        if self.kind == "uniform":
            return torch().rand(*shape, device=self.device) * 2 - 1
        return torch().randn(*shape, device=self.device)


NORMAL = Data()
