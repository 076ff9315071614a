"""Tensor maps and the boxes the copy engine moves through them (PTX ISA, "Tensors").

A map travels as 128 bytes, like the driver's CUtensorMap, but in an encoding of the emulator's own:
programs only ever pass its address on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import EmulatorError, IllegalAccess

BYTES = 128
MAGIC = b"TMAP"
LAYOUT = struct.Struct("<4sBBBBQ5Q4Q5H")  # magic, rank, element, swizzle, type, address, dims, ...
TYPES = ("", "u8", "u16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")
PIECE = 16  # bytes: what a store writes at a time along the innermost dimension
LINE = 128  # bytes: what the swizzle looks at
SWIZZLE_MASK = {0: 0, 32: 1, 64: 3, 128: 7}
MOST_DIMS = 5


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """What cuTensorMapEncodeTiled was given; innermost dimension first.

    strides: bytes, of dims 1 and on; the innermost one is implicit. box: elements. swizzle: bytes,
    0, 32, 64 or 128. element_type: a PTX type, needed by reductions only. Raises EmulatorError for what the driver would refuse.
    """

    address: int
    element_bytes: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    element_type: str = ""

    def __post_init__(self) -> None:
        rank = len(self.dims)
        inner = self.box[0] * self.element_bytes if self.box else 0
        rules = {
            "rank 1 to 5, one stride less": 1 <= rank <= MOST_DIMS
            and len(self.strides) == rank - 1
            and len(self.box) == rank,
            f"element_type one of {TYPES}": self.element_type in TYPES,
            "address a multiple of 16": self.address % 16 == 0,
            "strides multiples of 16 below 2^40": all(
                0 <= x < 1 << 40 and x % 16 == 0 for x in self.strides
            ),
            "dims from 1 to 2^32": all(1 <= x <= 1 << 32 for x in self.dims),
            "box sides from 1 to 256": all(1 <= x <= 256 for x in self.box),
            "inner box a multiple of 16 bytes": inner % 16 == 0,
            "swizzle 0, 32, 64 or 128": self.swizzle in SWIZZLE_MASK,
            "inner box within the swizzle span": not self.swizzle or inner <= self.swizzle,
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise EmulatorError(f"{self}: {'; '.join(broken)}")

    @property
    def box_bytes(self) -> int:
        return int(np.prod(self.box)) * self.element_bytes

    def encode(self) -> bytes:
        rank = len(self.dims)
        pad = MOST_DIMS - rank
        head = (MAGIC, rank, self.element_bytes, self.swizzle, TYPES.index(self.element_type))
        strides = (*self.strides, *(0,) * (MOST_DIMS - 1 - len(self.strides)))
        packed = LAYOUT.pack(
            *head, self.address, *self.dims, *(0,) * pad, *strides, *self.box, *(0,) * pad
        )
        return packed.ljust(BYTES, b"\0")


def decode(raw: bytes) -> TensorMap | None:
    """The map in 128 bytes, None if they hold none."""
    magic, rank, element, swizzle, kind, address, *rest = LAYOUT.unpack(raw[: LAYOUT.size])
    if magic != MAGIC:
        return None
    return TensorMap(
        address=address,
        element_bytes=element,
        dims=tuple(rest[:rank]),
        strides=tuple(rest[5 : 5 + rank - 1]),
        box=tuple(rest[9 : 9 + rank]),
        swizzle=swizzle,
        element_type=TYPES[kind],
    )


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box at given coordinates: one run of bytes per line of the innermost dimension.

    addresses: global address of the box's first byte on each line, int64 [lines]. inside: is the
    line within the tensor. low, high: which of its bytes are, the same on every line.
    """

    addresses: Any
    inside: Any
    low: int
    high: int
    line_bytes: int


def place(m: TensorMap, coords: tuple[int, ...], *, store: bool) -> Box:
    """Where the box lies. Loads clip at elements, stores at 16-byte pieces (measured on an H200).
    Raises IllegalAccess for a box that begins between two such pieces: an H200 stops with an illegal
    instruction."""
    width = m.box[0] * m.element_bytes
    start = coords[0] * m.element_bytes
    if (m.address + start) % PIECE:
        text = f"a box at element {coords[0]} of {m} does not begin at a multiple of {PIECE} bytes"
        raise IllegalAccess(text)
    extent = m.dims[0] * m.element_bytes
    extent = -(-extent // PIECE) * PIECE if store else extent
    offsets, inside = np.zeros(1, np.int64), np.ones(1, np.bool_)
    for dim in range(1, len(m.dims)):
        index = coords[dim] + np.arange(m.box[dim], dtype=np.int64)
        offsets = (index[:, None] * m.strides[dim - 1] + offsets[None, :]).reshape(-1)
        within = (index >= 0) & (index < m.dims[dim])
        inside = (within[:, None] & inside[None, :]).reshape(-1)
    low = min(max(-start, 0), width)
    return Box(
        addresses=m.address + start + offsets,
        inside=inside,
        low=low,
        high=max(min(extent - start, width), low),
        line_bytes=width,
    )


def chunks(address: int, size: int, swizzle: int) -> Any:
    """Which 16-byte chunk of shared memory holds each 16 bytes of a box, int64 [size / 16]: the
    chunk's number within its line is XORed with the line's (on absolute addresses)."""
    linear = address + 16 * np.arange(size // 16, dtype=np.int64)
    return (linear ^ (linear // LINE & SWIZZLE_MASK[swizzle]) << 4) // 16
