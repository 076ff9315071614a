"""A's block scales row by row: lanes read them where they lie, or TMA a copy (docs/adr/0046-lane-scales.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..config import Config
from ..cost import cost
from ..errors import IllegalConfig
from ..heuristics.tuned import Pick
from ..ir.counts import INT_LIMIT
from ..pipeline import lower
from ..problem import Problem, Shape
from ..runtime.arrays import ArrayDevice
from ..runtime.launch import LoadedKernel
from ..runtime.torch_tensors import mn_major
from ..target import Target
from . import building, refused
from .front import Fresh

# Seconds that a launch in front of the product is taken to cost, what it copies left out: it took 0.8 to 2.3 us of the GPU's
# time at few rows, and 22 to 50 us of the host's, which counts wherever launches are not captured in a graph.
COPY = 4e-6


@dataclass(frozen=True, kw_only=True)
class ByRow:
    """Scales of layout "row". name: of the argument, and of the tensor or parameter that a kernel reads."""

    name: str
    tensor: Any

    def copied(self) -> Fresh:
        """[..., blocks, rows], contiguous along the rows, made anew by every call. Raises ArgumentError for arrays that are
        not torch's."""
        return Fresh(name=self.name, make=_copied, tensor=_copied(self.tensor), copies=True)

    @property
    def in_reach(self) -> bool:
        """Whether a kernel's parameters hold its strides."""
        return all(0 <= self.tensor.stride(d) < INT_LIMIT for d in (-2, -1))


def _copied(scale: Any) -> Any:
    return mn_major(scale).mT


def as_maps_read(scales: dict[str, Any], kernel: LoadedKernel) -> dict[str, Any]:
    """Those that `kernel` reads by tensor map, copied if they lie row by row."""
    mapped = {m.tensor for m in kernel.kernel.maps}
    read = {name: x for name, x in scales.items() if name in mapped}
    return {name: x.copied() if isinstance(x, ByRow) else x for name, x in read.items()}


def loaded_choice(
    p: Problem, scales: ByRow, shape: Shape, groups: int, device: Any, split_k: int
) -> LoadedKernel:
    """As `building.loaded_choice`, but that it reads `scales` where they lie where that pays; or whatever it costs, if they
    are not torch's, which cannot be copied."""
    index = device.index
    if not scales.in_reach:
        return building.loaded_choice(p, shape, groups, index, split_k)
    _, target = building.priced_for(index)
    always = isinstance(device, ArrayDevice)

    def choose(unbuilt: Mapping[Config, str]) -> Pick:
        plain = building.chosen(p, shape, groups, index, split_k)
        return Pick(config=config_of(p, plain, shape, groups, target, always))

    return refused.first_built(p, choose, lambda c: building.loaded(p, c, index))[1]


@lru_cache(maxsize=4096)
def weighed(
    p: Problem, plain: Config, shape: Shape, groups: int, target: Target
) -> tuple[Config, bool]:
    """`plain`, but that it reads scales in place; and whether that takes no longer than a copy and `plain` after it, as the
    model says. Kept for next time: the model takes a hundred times as long as what is weighed."""
    reading = plain.having(lane_scales=True)
    seconds = [cost(p, c, shape, target, groups).seconds for c in (reading, plain)]
    return reading, seconds[0] <= seconds[1] + COPY


def config_of(
    p: Problem, plain: Config, shape: Shape, groups: int, target: Target, always: bool = False
) -> Config:
    """What a call with scales of layout "row" builds where `plain` is chosen for scales that TMA reads. always: wherever the
    rules and the build take it, not only where it pays."""
    reading, pays = weighed(p, plain, shape, groups, target)
    fits = (pays or always) and reading not in refused.known(p) and _is_legal(p, reading)
    return reading if fits else plain


@lru_cache(maxsize=4096)
def _is_legal(p: Problem, c: Config) -> bool:
    try:
        lower(p, c)
    except IllegalConfig:
        return False
    return True
