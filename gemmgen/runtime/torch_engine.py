"""Verification's array library on a GPU: float64 through torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codes import table
from ..ir.dtypes import BF16, E4M3, F16, F32, DType
from .torch_tensors import torch, torch_dtype

SIGNED = {np.uint8: np.uint8, np.uint16: np.int16, np.uint32: np.int32}


@dataclass(frozen=True, kw_only=True)
class TorchEngine:
    """Engine over torch tensors on `device`. Codes are held signed: torch computes little unsigned."""

    device: str = "cuda"

    def lift(self, array: npt.NDArray[Any]) -> Any:
        held = array.view(SIGNED.get(array.dtype.type, array.dtype))
        return torch().from_numpy(np.ascontiguousarray(held)).to(self.device)

    def lower(self, array: Any) -> npt.NDArray[Any]:
        held: npt.NDArray[Any] = array.cpu().numpy()
        unsigned = {np.int16: np.uint16, np.int32: np.uint32}
        return held.view(unsigned.get(held.dtype.type, held.dtype))

    def lookup(self, table: npt.NDArray[np.float64], codes: Any) -> Any:
        index = codes.to(torch().int32) & (len(table) - 1)
        return torch().from_numpy(table.copy()).to(self.device)[index]

    def decode(self, codes: Any, dtype: DType) -> Any:
        if dtype == E4M3:
            return self.lookup(table(dtype), codes)
        return codes.view(torch_dtype(dtype)).to(torch().float64)

    def round_to(self, values: Any, dtype: DType) -> Any:
        if dtype.integer:
            return values.round().to(torch_dtype(dtype))
        wide = values.to(torch().float32)
        names = {BF16: "int16", F16: "int16", F32: "int32", E4M3: "uint8"}
        codes = getattr(torch(), names[dtype])
        return wide.to(torch_dtype(dtype)).view(codes)

    def maximum(self, x: Any, y: Any) -> Any:
        return torch().maximum(x, y)

    def where(self, mask: Any, x: Any, y: Any) -> Any:
        return torch().where(mask, x, y)

    def amax(self, x: Any, axis: int) -> Any:
        return torch().amax(x, axis)

    def exp(self, x: Any) -> Any:
        return torch().exp(x)

    def tanh(self, x: Any) -> Any:
        return torch().tanh(x)

    def erf(self, x: Any) -> Any:
        return torch().erf(x)
