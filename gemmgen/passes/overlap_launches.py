"""Where a launch may begin before the one before it has ended, keep it from global memory until then."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig
from ..ir.nodes import Kernel, LaunchDependents, WaitForGrids
from ..target import Target
from .scatter_rows import RANKS_OVERLAP


def overlap_launches(kernel: Kernel, target: Target, pdl: bool) -> Kernel:
    """With `pdl`, let the next launch begin, then wait for the ones before, when barriers are up and before any role
    starts. Sets Kernel.pdl, LaunchDependents and WaitForGrids."""
    if not pdl:
        return kernel
    if kernel.peers.slot or kernel.arrivals.chunks:
        raise IllegalConfig(RANKS_OVERLAP, {"pdl": True}, "Use pdl=false.")
    prologue = (*kernel.prologue, LaunchDependents(), WaitForGrids())
    return replace(kernel, prologue=prologue, pdl=True)
