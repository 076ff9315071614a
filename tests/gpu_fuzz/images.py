"""Tensors inside larger ones: operands among NaN, outputs among poison that must stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from .cases import up

NAN_BYTE = 0xFF  # NaN in FP8, BF16, FP16 and FP32
POISONS = (0xFF, 0x5A)  # NaN in every floating dtype; then a number that no result is likely to be
GUARD = 4096  # bytes, on either side, at least
GUARD_ROWS = 8
IMAGES = 5  # outputs that are written before they are compared
MOST = 1 << 27  # bytes of all of them, if that leaves two


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a tensor [..., rows, columns] lies in its parent, in bytes; rows are contiguous."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    size: int

    def view(self, parent: Any, dtype: Any) -> Any:
        """The tensor in uint8 `parent`."""
        typed, item = parent.view(dtype), dtype.itemsize
        strides = tuple(s // item for s in self.strides)
        first = typed.storage_offset() + self.first // item
        return typed.as_strided(self.shape, strides, first)


def layout(rng: Random, shape: tuple[int, ...], item: int, guard: int = 512) -> Layout:
    """Rows padded or not, groups apart or not, from a multiple of 16 bytes on."""
    *lead, rows, columns = shape
    pitch = up(columns * item, 16) + 16 * rng.choice((0, 0, 1, 3, 8))
    group = (rows + rng.choice((0, 0, 1, 5))) * pitch
    first = up(max(guard, GUARD_ROWS * pitch), 512) + 16 * rng.choice((0, 0, 0, 1, 5, 7))
    body = group * (lead[0] if lead else 1)
    strides = (*(max(group, 16),) * len(lead), pitch, item)
    return Layout(shape=shape, strides=strides, first=first, size=up(first + body + first, 16))


def embed(values: Any, dtype: Any, rng: Random) -> tuple[Any, Any]:
    """`values` as `dtype`, as a view of a parent full of NaN, and that parent."""
    place = layout(rng, tuple(values.shape), dtype.itemsize)
    parent = torch.full((place.size,), NAN_BYTE, dtype=torch.uint8, device=values.device)
    view = place.view(parent, dtype)
    view.copy_(values.to(dtype))
    return view, parent


def lose(view: Any, rows: Any) -> None:
    """Fill the rows of `view` that the mask [..., rows] names with NaN."""
    view.view(torch.uint8).masked_fill_(rows.unsqueeze(-1), NAN_BYTE)


@dataclass(frozen=True, kw_only=True)
class Output:
    """Copies of an output, each in an image of its own. begins, wants: by poison, uint8 [size], what an
    image holds before a launch and after it."""

    place: Layout
    dtype: Any
    images: Any  # uint8 [copies, size]
    begins: tuple[Any, ...]
    wants: tuple[Any, ...]

    @property
    def views(self) -> list[Any]:
        return [self.place.view(image, self.dtype) for image in self.images]

    def poison(self, which: int) -> None:
        self.images.copy_(self.begins[which].expand_as(self.images))

    def wrong(self, which: int) -> Any:
        """int64: how many images differ from what they should be. On the device, not waited for."""
        want = self.wants[which].view(torch.int64)
        return (self.images.view(torch.int64) != want).any(1).sum()

    def values_differ(self, which: int) -> list[int]:
        """The images that differ by more than the sign of a zero. Waits."""
        got = self.images.clone()
        want = self.wants[which].clone()
        if self.dtype.is_floating_point:
            for image in (*got, want):
                view = self.place.view(image, self.dtype)
                view.copy_(torch.where(view == 0, torch.zeros_like(view), view))
        return (got != want).any(1).nonzero().flatten().tolist()

    def first_difference(self, which: int, image: int) -> str:
        """Where image `image` first differs, relative to element (0, 0), and what is there."""
        got, want = self.images[image], self.wants[which]
        at = (got != want).nonzero().flatten()
        byte = int(at[0])
        where = f"first {byte - self.place.first} bytes from element 0"
        return f"{len(at)} bytes, {where}: {int(got[byte]):#04x}, not {int(want[byte]):#04x}"


def output(
    rng: Random,
    shape: tuple[int, ...],
    dtype: Any,
    device: str,
    fill: Callable[[Any, Any], None],
    copies: int = IMAGES,
) -> Output:
    """`copies` outputs, fewer if they are large. fill: what writes the values before a launch, and those
    after it, to two views."""
    place = layout(rng, shape, dtype.itemsize, GUARD)
    begins, wants = [], []
    for poison in POISONS:
        begin = torch.full((place.size,), poison, dtype=torch.uint8, device=device)
        want = begin.clone()
        fill(place.view(begin, dtype), place.view(want, dtype))
        begins.append(begin)
        wants.append(want)
    many = max(2, min(copies, MOST // place.size))
    images = torch.empty(many, place.size, dtype=torch.uint8, device=device)
    return Output(place=place, dtype=dtype, images=images, begins=tuple(begins), wants=tuple(wants))
