"""The array library that does the heavy float64 work, behind the few calls that libraries spell apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import codes as formats
from ..codes import Floats
from ..ir.dtypes import DType

ERF = np.vectorize(math.erf, otypes=[np.float64])

Array = Any  # an engine's array: np.ndarray, torch.Tensor


class Engine(Protocol):
    """What verification needs beyond what NumPy arrays and torch tensors share.

    Shared, and used as they are: arithmetic, comparisons, `&`, `~`, `@`, `abs()`, slices, `.shape`,
    `.reshape`, `.T`, `.sum()`, `.max()`, `.any()`. All floating arrays are float64. Code arrays are
    integers of the dtype's width; an engine may hold them signed, nothing but `!=` and the
    methods below ever reads them.
    """

    def lift(self, array: npt.NDArray[Any]) -> Array:
        """`array` on the engine: float64 or codes, same shape."""

    def lower(self, array: Array) -> npt.NDArray[Any]:
        """The inverse of `lift`; codes come back unsigned. Booleans too."""

    def lookup(self, table: Floats, codes: Array) -> Array:
        """`table[codes]`, float64: `table` has 256 entries for 8-bit codes, 65,536 for 16-bit."""

    def decode(self, codes: Array, dtype: DType) -> Array:
        """The exact float64 value of each code, F32 included."""

    def round_to(self, values: Array, dtype: DType) -> Array:
        """float64 -> float32 -> codes, each step to nearest even, overflow to infinity; an integer
        dtype straight from float64.

        Through float32 because that is what a kernel's epilogue holds before it rounds.
        """

    def maximum(self, x: Array, y: Array) -> Array:
        """Element by element, broadcasting; NaN if either is."""

    def where(self, mask: Array, x: Array, y: Array) -> Array:
        """Element by element, broadcasting; `x` may be a Python float."""

    def amax(self, x: Array, axis: int) -> Array:
        """The maximum over one axis, which goes away; that axis is never empty."""

    def exp(self, x: Array) -> Array:
        """e^x; infinity on overflow, without a warning."""

    def tanh(self, x: Array) -> Array: ...

    def erf(self, x: Array) -> Array: ...


@dataclass(frozen=True, kw_only=True)
class NumpyEngine:
    """Engine on the CPU."""

    def lift(self, array: npt.NDArray[Any]) -> Array:
        return array

    def lower(self, array: Array) -> npt.NDArray[Any]:
        return np.asarray(array)

    def lookup(self, table: Floats, codes: Array) -> Array:
        return table[codes]

    def decode(self, codes: Array, dtype: DType) -> Array:
        return formats.decode(codes, dtype)

    def round_to(self, values: Array, dtype: DType) -> Array:
        if dtype.integer:
            return formats.encode(values, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            return formats.encode(values.astype(np.float32), dtype)

    def maximum(self, x: Array, y: Array) -> Array:
        return np.maximum(x, y)

    def where(self, mask: Array, x: Array, y: Array) -> Array:
        return np.where(mask, x, y)

    def amax(self, x: Array, axis: int) -> Array:
        return x.max(axis)

    def exp(self, x: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.exp(x)

    def tanh(self, x: Array) -> Array:
        return np.tanh(x)

    def erf(self, x: Array) -> Array:
        return ERF(x)
