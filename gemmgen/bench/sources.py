"""Who is measured of a problem, and by which module: of one GEMM, of groups of rows, of groups that split K."""

from __future__ import annotations

from typing import Protocol

from ..config import Config
from ..ir.groupings import GROUPINGS
from ..problem import Problem
from . import cases, grouped, k_grouped, providers
from .data import NORMAL, Data
from .peers import PEERS
from .providers import Call
from .select import Offer
from .shapes import Shape


class Groups(Protocol):
    """A module that measures launches of groups."""

    def calls(
        self, p: Problem, shape: Shape, config: Config, data: Data = NORMAL, fresh: bool = False
    ) -> dict[str, Call]: ...

    def reference(self, p: Problem) -> str: ...

    def offers(self, p: Problem) -> tuple[Offer, ...]: ...


def groups(p: Problem) -> Groups:
    """For a problem that has some."""
    return k_grouped if GROUPINGS[p.grouping].depths else grouped


def reference(p: Problem) -> str:
    """The provider that ratios are taken to."""
    return providers.reference(p) if p.grouping == "none" else groups(p).reference(p)


def offers(p: Problem, config: Config) -> tuple[Offer, ...]:
    """What `--providers` selects; of one GEMM all are `providers.Provider`."""
    if p.grouping == "none":
        return (providers.gemmgen(config), *providers.TORCH, *PEERS)
    return groups(p).offers(p)


def reference_call(p: Problem, shape: Shape, config: Config, data: Data = NORMAL) -> Call:
    """Of the reference, over tensors of its own."""
    if p.grouping == "none":
        return providers.torch_reference(p).make(cases.make(p, shape, data), False)
    return groups(p).calls(p, shape, config, data)[reference(p)]
