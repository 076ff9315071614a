"""Who is measured of a problem, and by which module: of one GEMM, or of several."""

from __future__ import annotations

from ..config import Config
from ..problem import Problem
from . import cases, grouped, providers, read
from .data import NORMAL, Data
from .peers import PEERS
from .providers import Call
from .select import Offer
from .shapes import Shape


def reference(p: Problem) -> str:
    """The provider that ratios are taken to."""
    return providers.reference(p) if p.grouping == "none" else grouped.reference(p)


def offers(p: Problem, config: Config) -> tuple[Offer, ...]:
    """What `--providers` selects; of one GEMM all are `providers.Provider`."""
    if p.grouping == "none":
        return (providers.gemmgen(config), *providers.TORCH, *PEERS, read.PROVIDER)
    return grouped.offers(p)


def reference_call(p: Problem, shape: Shape, config: Config, data: Data = NORMAL) -> Call:
    """Of the reference, over tensors of its own."""
    if p.grouping == "none":
        return providers.torch_reference(p).make(cases.make(p, shape, data), False)
    return grouped.calls(p, shape, config, data)[reference(p)]
