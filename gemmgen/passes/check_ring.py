"""Reject rings too shallow for how long the consumers hold a stage."""

from __future__ import annotations

from ..errors import IllegalConfig, Rule
from ..ir.nodes import Kernel
from ..ir.rewrite import statements
from ..ir.stmts import releases
from ..target import Target

RING_DEPTH = Rule(
    id="ring-depth",
    says="a kernel that releases a stage one K block late (in_flight=1, sums in the tensor core) needs two stages",
    because="With one stage the consumers would wait for a K block that the producer may not load "
    "before they release the stage they still hold: both wait for ever. Where sums are promoted, in_flight=1 "
    "drains each K block before it releases the stage: one is enough.",
)
RULES = (RING_DEPTH,)


def check_ring(kernel: Kernel, target: Target) -> Kernel:
    """Check the ring's stages against the releases' lag. Changes nothing."""
    lag = max((s.lag for s in statements(kernel) if releases(s)), default=0)
    if kernel.stages <= lag:
        values = {"stages": kernel.stages, "in_flight": lag}
        raise IllegalConfig(RING_DEPTH, values, f"Use at least {lag + 1} stages, or in_flight=0.")
    return kernel
