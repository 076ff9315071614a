"""A setting of the whole process: whether launches begin while the ones before them end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..config import Config
from ..errors import ArgumentError
from ..problem import Problem

# What `set_pdl` was last given. Read as `dependent.asked`: a name imported from here stays as it was.
asked = False


def set_pdl(on: bool) -> None:
    """Let every GEMM that any thread asks for from now on without a config begin while the launch before it on its stream ends
    (programmatic dependent launch, `Config.pdl`), or, with False, after it. The config is otherwise the one that is chosen, and so are bits.

    Kernels wait themselves for what they read and before they write, so no order that a stream promises is lost
    (docs/adr/0012-dependent-launches.md). Launches that GPUs share begin when the ones before are over, as they must. A config that
    is given says itself. What a CUDA graph has captured, or `bind` has bound, keeps its own. Raises ArgumentError.
    """
    global asked
    if not isinstance(on, bool):
        raise ArgumentError("on", on, "must be true or false")
    asked = on


def is_pdl() -> bool:
    """What `set_pdl` was last given, at first False."""
    return asked


def as_asked(p: Problem, c: Config) -> Config:
    """`c`, which was chosen for `p`, with `pdl` if the process asks for that and it can be."""
    return replace(c, pdl=True) if asked and not p.together else c


def before(unbuilt: Mapping[Config, str]) -> Mapping[Config, str]:
    """What the build refused, and why, also as it was chosen: before `as_asked`."""
    return {replace(c, pdl=False): why for c, why in unbuilt.items()} | dict(unbuilt)
