"""The shared-memory matrix descriptor of wgmma, and the operand tile it points at.

PTX ISA, "Asynchronous warpgroup level matrix instructions": matrix descriptor format, strides and
canonical layouts. Swizzling is an XOR of absolute shared-memory address bits, as in the tensor map.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .errors import ProtocolError

Addresses = npt.NDArray[np.int64]

UNIT = 16  # bytes: addresses and offsets are stored without their low four bits
FIELD = 0x3FFF
RESERVED = ~(FIELD | FIELD << 16 | FIELD << 32 | 7 << 49 | 3 << 62) & (1 << 64) - 1
SWIZZLE_BYTES = (0, 128, 64, 32)  # by the code in bits 62-63
SWIZZLE_MASK = {0: 0, 32: 1, 64: 3, 128: 7}  # of the 128-byte line number, XORed into the chunk

K_BYTES = 32  # of one wgmma, every dtype
CORE_ROWS = 8  # a core matrix is 8 rows of 16 bytes
CORE_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """A decoded matrix descriptor; all offsets in bytes."""

    start: int
    leading: int
    stride: int
    base_offset: int
    swizzle: int  # bytes: 128, 64, 32, or 0 for none


def decode_descriptor(value: int) -> Descriptor:
    """The fields of a 64-bit descriptor.

    Raises ProtocolError if a reserved bit is set, or a base offset without a 64- or 128-byte swizzle.
    """
    if not 0 <= value < 1 << 64:
        raise ProtocolError(f"a matrix descriptor has 64 bits, not {value:#x}")
    if value & RESERVED:
        raise ProtocolError(f"matrix descriptor {value:#018x} sets reserved bits")
    swizzle, base_offset = SWIZZLE_BYTES[value >> 62], value >> 49 & 7
    if base_offset and swizzle not in (64, 128):
        raise ProtocolError(
            f"matrix descriptor {value:#018x}: base offset {base_offset} with swizzle {swizzle}; "
            "only the 64- and 128-byte swizzles have one"
        )
    start, leading, stride = ((value >> bit & FIELD) * UNIT for bit in (0, 16, 32))
    return Descriptor(
        start=start, leading=leading, stride=stride, base_offset=base_offset, swizzle=swizzle
    )


@lru_cache(maxsize=256)
def addresses(descriptor: Descriptor, rows: int, transposed: bool = False) -> Addresses:
    """Where each byte of the tile lies: int64 [rows, 32], read-only.

    `transposed` is MN-major: 16 elements of K, two bytes each, of `rows` adjacent elements.
    Raises ProtocolError for a base offset, whose effect is not modelled.
    """
    if descriptor.base_offset:
        raise ProtocolError(f"{descriptor}: tiles that need a base offset are not modelled")
    linear = descriptor.start + _offsets(
        descriptor.leading, descriptor.stride, descriptor.swizzle, rows, transposed
    )
    return _frozen(swizzled(linear, descriptor.swizzle))


def swizzled(linear: Addresses, swizzle: int) -> Addresses:
    """Each address with its 16-byte chunk number XORed by its 128-byte line number."""
    return linear ^ (linear >> 7 & SWIZZLE_MASK[swizzle]) << 4


@lru_cache(maxsize=256)
def _offsets(leading: int, stride: int, swizzle: int, rows: int, transposed: bool) -> Addresses:
    """Byte offsets before the swizzle, relative to the start address: int64 [rows, 32]."""
    row, byte = np.arange(rows)[:, None], np.arange(K_BYTES)[None, :]
    layout = _mn_major if transposed else _k_major
    return _frozen(layout(row, byte, leading, stride, swizzle))


def _k_major(row: Addresses, byte: Addresses, leading: int, stride: int, swizzle: int) -> Addresses:
    """`stride` leads to the next 8 rows. `leading`, to the next 16 bytes of K, is ignored by the
    swizzled layouts, whose rows are a whole swizzle span apart."""
    group = row // CORE_ROWS * stride
    if swizzle:
        return group + row % CORE_ROWS * swizzle + byte
    core = row % CORE_ROWS * CORE_BYTES + byte % CORE_BYTES
    return group + core + byte // CORE_BYTES * leading


def _mn_major(
    row: Addresses, byte: Addresses, leading: int, stride: int, swizzle: int
) -> Addresses:
    """`stride` leads to the next 8 elements of K and `leading` to the next swizzle span of rows;
    without a swizzle the two swap roles."""
    k, span = byte // 2, swizzle or CORE_BYTES
    next_k, next_row = (stride, leading) if swizzle else (leading, stride)
    along = row * 2  # bytes
    core = along % span + byte % 2 + k % CORE_ROWS * span
    return core + along // span * next_row + k // CORE_ROWS * next_k


def _frozen(values: Addresses) -> Addresses:
    values.flags.writeable = False
    return values
