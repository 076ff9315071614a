"""What files are written of: tensors, by what they are made of and how large they will be, before any is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..quant.checkpoint import DTYPES, Place

BY_TORCH = {called: (name, size) for name, (called, size) in DTYPES.items()}
Made = Mapping[str, Any]  # torch tensors by name


@dataclass(frozen=True, kw_only=True)
class Held:
    """A tensor of the files that are written. dtype: by the format's name. size: bytes, of all and of an element."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    element: int


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Tensors of one matrix. make: reads and packs it; called with a function of (rows done, rows). size: bytes that are read."""

    holds: tuple[Held, ...]
    size: int
    make: Callable[[Callable[[int, int], object]], Made]


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A tensor that stays as it is."""

    held: Held
    place: Place

    @property
    def holds(self) -> tuple[Held, ...]:
        return (self.held,)

    @property
    def size(self) -> int:
        return self.place.size


Piece = Packing | Copy


def of_tensor(name: str, x: Any) -> Held:
    """Of a torch tensor, one on the device meta too."""
    dtype, element = BY_TORCH[str(x.dtype).removeprefix("torch.")]
    shape = tuple(x.shape)
    return Held(
        name=name, dtype=dtype, shape=shape, size=math.prod(shape) * element, element=element
    )


def copied(name: str, place: Place) -> Copy:
    """The tensor at `place`, by that name."""
    element = max(1, place.size // max(1, math.prod(place.shape)))
    held = Held(name=name, dtype=place.dtype, shape=place.shape, size=place.size, element=element)
    return Copy(held=held, place=place)
