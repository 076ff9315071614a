"""A's block scales row by row: lanes read them where they lie, or TMA a copy (docs/adr/0046-lane-scales.md)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..config import Config
from ..cost import cost
from ..errors import CompileError, IllegalConfig
from ..ir.counts import INT_LIMIT
from ..pipeline import lower
from ..problem import Problem, Shape
from ..runtime.arrays import ArrayDevice
from ..runtime.launch import LoadedKernel
from ..runtime.torch_tensors import mn_major
from ..target import Target
from . import building, refused
from .front import Fresh

# Seconds that a launch in front of the product takes at the very least, what it copies left out. An estimate, meant to be
# too low: what is read in place must not lose.
COPY = 2e-6

log = logging.getLogger(__name__)
_refused: set[tuple[Problem, Config]] = set()  # by the build, in this process: not built again


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


def in_place(
    p: Problem, scales: ByRow, shape: Shape, groups: int, device: Any, split_k: int
) -> LoadedKernel | None:
    """The kernel of the config that is chosen, but that it reads `scales` where they lie. None where the copy costs less, as
    the model says, and where there is no such kernel. Arrays that are not torch's cannot be copied."""
    if not scales.in_reach:
        return None
    plain = building.chosen(p, shape, groups, device.index, split_k)
    _, target = building.priced_for(device.index)
    reading, pays = weighed(p, plain, shape, groups, target)
    if not pays and not isinstance(device, ArrayDevice):
        return None
    return _loaded(p, reading, device.index)


@lru_cache(maxsize=4096)
def weighed(
    p: Problem, plain: Config, shape: Shape, groups: int, target: Target
) -> tuple[Config, bool]:
    """`plain`, but that it reads scales in place; and whether that takes no longer than the least copy and `plain` after it,
    as the model says. Kept for next time: the model takes a hundred times as long as what is weighed."""
    reading = plain.having(lane_scales=True)
    seconds = [cost(p, c, shape, target, groups).seconds for c in (reading, plain)]
    return reading, seconds[0] <= seconds[1] + COPY


def config_of(p: Problem, plain: Config, shape: Shape, groups: int, target: Target) -> Config:
    """What a call with torch's scales of layout "row" builds where `plain` is chosen for scales that TMA reads."""
    reading, pays = weighed(p, plain, shape, groups, target)
    if not pays or reading in refused.known(p):
        return plain
    try:
        lower(p, reading)
    except IllegalConfig:
        return plain
    return reading


def _loaded(p: Problem, c: Config, device: int) -> LoadedKernel | None:
    """None where the rules or the build refuse it: then the one that was chosen reads a copy."""
    if (p, c) in _refused:
        return None
    try:
        return building.loaded(p, c, device)
    except IllegalConfig as e:
        log.debug("%s is not read in place: %s", p.to_json(), e)
    except CompileError as e:
        if not e.lasting:
            raise
        _refused.add((p, c))
        log.warning("%s: the build refused to read scales in place: %s", p.to_json(), e)
    return None
