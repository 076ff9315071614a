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
    """The provider that ratios are taken to. Of groups, one that computes the same where such a one is installed."""
    return providers.reference(p) if p.grouping == "none" else grouped.reference(p)


def offers(p: Problem, config: Config) -> tuple[Offer, ...]:
    """What `--providers` selects; of one GEMM all are `providers.Provider`."""
    if p.grouping == "none":
        return (providers.gemmgen(config), *providers.TORCH, *PEERS, read.PROVIDER)
    return grouped.offers(p)


def is_one_gemm(name: str) -> bool:
    """Whether a provider of groups computes something else: one GEMM of as many products."""
    return name.endswith(grouped.ALONE)


def torch_reference(p: Problem) -> str:
    """The name of `torch_call`."""
    return providers.reference(p) if p.grouping == "none" else grouped.one_gemm(p)


def torch_call(p: Problem, shape: Shape, config: Config, data: Data = NORMAL) -> Call:
    """Of torch's one GEMM, over tensors of its own: what the databases hold their times against, as torch is
    always installed."""
    if p.grouping == "none":
        return providers.torch_reference(p).make(cases.make(p, shape, data), False)
    return grouped.calls(p, shape, config, data)[grouped.one_gemm(p)]
