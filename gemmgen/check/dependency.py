"""P15: a launch that may overlap the one before it waits for that before it touches global memory.

Every thread has to wait by itself, and before the scheduler is made, which reads where groups end: so the
prologue waits, outside any block, and nothing before that may read or write what others can see.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import nodes as ir
from ..ir.blocks import BLOCKS
from ..ir.rewrite import walk
from .finding import Finding
from .properties import DEPENDENCY

# Barriers, registers, and the kernel's own parameters.
HARMLESS = (
    ir.PrefetchMap,
    ir.InitBarrier,
    ir.Fence,
    ir.Sync,
    ir.LaunchDependents,
)


def dependency(kernel: ir.Kernel) -> Iterator[Finding]:
    """What `kernel` does too early, if it is launched while the launch before it may still run."""
    if not kernel.pdl:
        return
    waits = [i for i, s in enumerate(kernel.prologue) if isinstance(s, ir.WaitForGrids)]
    if not waits:
        yield _wrong("the prologue does not wait, in every thread, for the launches before")
        return
    for s in walk(kernel.prologue[: waits[0]]):
        if not isinstance(s, HARMLESS + BLOCKS):
            yield _wrong(f"{type(s).__name__} stands before the wait for the launches before")


def _wrong(text: str) -> Finding:
    return Finding(property=DEPENDENCY, message=text)
