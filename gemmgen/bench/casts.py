"""Quantising, timed against a copy that moves as many bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from ..casts import Per
from ..errors import GemmgenError
from ..ir.dtypes import DType
from ..ops import casting, quantise
from ..runtime.torch_tensors import torch, torch_dtype
from .timing import Samples, interleave

Shape = tuple[int, int]  # rows, columns


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cast of one shape: the median of its calls and their interquartile range over it; what it reads and writes
    in that time; and that over the same of a copy on the device, timed in turn with it."""

    rows: int
    columns: int
    per: Per
    x: str
    q: str
    microseconds: float
    spread: float
    gigabytes_per_second: float
    copy_gigabytes_per_second: float

    @property
    def share(self) -> float:
        """Of the copy's bandwidth."""
        return self.gigabytes_per_second / self.copy_gigabytes_per_second


def measure(
    shapes: Iterable[Shape], x: DType, q: str, power_of_two: bool, repeats: int
) -> list[Row]:
    """A row per shape and what may share a scale: device time, cold L2, of N(0, 1). Each cast is compared with
    torch's operators first. Needs a GPU; raises GemmgenError if a bit differs."""
    found = []
    for shape in shapes:
        given = torch().randn(shape, device="cuda").to(torch_dtype(x))
        bytes_of = {per: _verified(given, per, q, power_of_two) for per in get_args(Per)}
        calls: dict[str, Callable[[], Any]] = {}
        for per, moved in bytes_of.items():
            calls[per] = partial(casting.quantised, given, per, q, power_of_two)
            calls[f"copy {per}"] = _copy(moved)
        timed = interleave(calls, repeats)
        found += [
            _row(shape, per, x, q, moved, timed[per], timed[f"copy {per}"])
            for per, moved in bytes_of.items()
        ]
    return found


def _verified(x: Any, per: Per, q: str, power_of_two: bool) -> int:
    """The bytes that this cast reads and writes. Raises GemmgenError."""
    got, want = (way(x, per, q, power_of_two) for way in (casting.quantised, quantise.by_torch))
    bits = {1: torch().uint8, 4: torch().int32}
    for a, b in zip(got, want, strict=True):
        if not torch().equal(*(t.view(bits[t.element_size()]) for t in (a, b))):
            raise GemmgenError(f"quantising {tuple(x.shape)} per {per} differs from the torch code")
    return sum(t.numel() * t.element_size() for t in (x, *got))


def _copy(moved: int) -> Callable[[], Any]:
    """Reads half of `moved` bytes and writes them elsewhere."""
    size = -(-moved // 2)
    source, target = (torch().zeros(size, dtype=torch().uint8, device="cuda") for _ in range(2))
    return partial(target.copy_, source)


def _row(shape: Shape, per: Per, x: DType, q: str, moved: int, cast: Samples, copy: Samples) -> Row:
    return Row(
        rows=shape[0],
        columns=shape[1],
        per=per,
        x=x.name,
        q=q,
        microseconds=cast.median * 1e6,
        spread=cast.spread,
        gigabytes_per_second=moved / cast.median * 1e-9,
        copy_gigabytes_per_second=moved / copy.median * 1e-9,
    )
