"""Arrays on the GPU that are not torch's, as what gemmgen asks of a tensor: where it lies and how."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import DType

CUDA = "cuda"


@dataclass(frozen=True)
class ArrayDevice:
    """Where an array lies, and the stream on which it may be used: a raw handle, 0 for the default one."""

    type: str
    index: int
    stream: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Array:
    """A view of somebody's array, with those of torch.Tensor's methods that describe memory.

    shape, strides: elements. dtype: where gemmgen knows none that the array says, its name, as "u8".
    readonly: whether its maker forbids writing. owner: held, so that the memory stays.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType | str
    bits: int  # of an element
    device: ArrayDevice
    readonly: bool = False
    owner: Any = None

    def data_ptr(self) -> int:
        return self.address

    def stride(self, side: int | None = None) -> Any:
        return self.strides if side is None else self.strides[side]

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.bits // 8

    def is_contiguous(self) -> bool:
        dense = compact(self.shape)
        sides = zip(self.shape, self.strides, dense, strict=True)
        return not self.numel() or all(s == d for side, s, d in sides if side > 1)

    def reshape(self, shape: tuple[int, ...]) -> Array:
        """Of a contiguous array, which is never copied. Raises ArgumentError for another size."""
        if not self.is_contiguous() or math.prod(shape) != self.numel():
            raise ArgumentError("shape", shape, f"must be of a contiguous array {self.shape}")
        return replace(self, shape=shape, strides=compact(shape))

    def on(self, stream: int) -> Array:
        """The same, to be used on another stream."""
        return replace(self, device=replace(self.device, stream=stream))

    @property
    def mT(self) -> Array:
        """The last two sides exchanged."""
        *lead, rows, columns = zip(self.shape, self.strides, strict=True)
        shape, strides = zip(*lead, columns, rows, strict=True)
        return replace(self, shape=tuple(shape), strides=tuple(strides))


def compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a dense array in C order."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def seen_as(name: str, x: Array, dtype: DType) -> Array:
    """`x`, whose elements are of `dtype`: of arrays that cannot say so, whose elements are unsigned integers or
    nothing but bytes of the same size. Raises ArgumentError naming `name`."""
    if x.dtype == dtype:
        return x
    if isinstance(x.dtype, DType) or x.bits != dtype.bits:
        allowed = f"cannot be seen as {dtype}: its elements must be {dtype.bits} bits without another type"
        raise ArgumentError(f"{name} dtype", str(x.dtype), allowed)
    return replace(x, dtype=dtype)
