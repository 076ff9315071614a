"""What a pack holds: kernels compiled for one problem, and which of them serves which shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ..config import Config
from ..ir.nodes import Kernel
from ..problem import Problem
from .fields import Interface

FORMAT = 1  # of the folder; a source reads only the one it was generated with


@dataclass(frozen=True, kw_only=True)
class PackedKernel:
    """One cubin: its config, the lowered kernel and the image."""

    config: Config
    kernel: Kernel
    image: bytes

    @property
    def file(self) -> str:
        return f"{self.kernel.name}.cubin"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.image).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Range:
    """The sizes from `first` to `last`, at the sides `at`, that the pack's `kernel`-th kernel serves: without
    groups the M at one N and K (gemmgen.pack.groups.Choice says what they are with groups)."""

    at: tuple[int, ...]
    first: int
    last: int
    kernel: int


@dataclass(frozen=True, kw_only=True)
class Pack:
    """prefix: what every C name begins with. device: for which configs were chosen."""

    prefix: str
    problem: Problem
    device: str
    interface: Interface
    kernels: tuple[PackedKernel, ...]
    ranges: tuple[Range, ...]

    @property
    def regions(self) -> dict[int, int]:
        """Of a workspace for sums, by how many words a CTA has there: how many others have before them. Kernels that lay it out alike
        share a region, of which flags are where flags were."""
        words = sorted({x.kernel.workspace.words for x in self.kernels})
        return {n: sum(words[:i]) for i, n in enumerate(words)}

    @property
    def words(self) -> int:
        """Of all regions, for a CTA."""
        return sum(self.regions)


def ranges(chosen: Mapping[tuple[tuple[int, ...], int], int]) -> tuple[Range, ...]:
    """What serves which shapes, where `chosen` says which kernel each (sides, size) has: a size between two of
    the same sides goes to the greater one's, as rows of one tile do. Sorted by sides and size."""
    found: list[Range] = []
    for (at, size), kernel in sorted(chosen.items()):
        last = found[-1] if found and found[-1].at == at else None
        if last and last.kernel == kernel:
            found[-1] = replace(last, last=size)
        else:
            first = last.last + 1 if last else 1
            found.append(Range(at=at, first=first, last=size, kernel=kernel))
    return tuple(found)


def switched(asked: Iterable[int], choose: Callable[[int], Config]) -> dict[int, Config]:
    """The configs of the M in `asked`, and between two of them that differ the last M of each config, found by
    bisection: exact where a config that was left is not taken again before the next M in `asked`."""
    listed = sorted(asked)
    found = {m: choose(m) for m in listed}
    for low, high in pairwise(listed):
        while found[low] != found[high]:
            last, next_ = low, high  # of low's config; of another
            while next_ - last > 1:
                middle = (last + next_) // 2
                same = choose(middle) == found[low]
                last, next_ = (middle, next_) if same else (last, middle)
            found[last], found[next_] = found[low], choose(next_)
            low = next_
    return found


def distinct(configs: Iterable[Config]) -> tuple[Config, ...]:
    """Each once, in the order in which they first occur."""
    return tuple(dict.fromkeys(configs))
