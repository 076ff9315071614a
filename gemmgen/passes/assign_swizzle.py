"""Choose how rows are swizzled across the shared-memory banks: one mode for TMA and wgmma alike."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.nodes import Kernel, Smem
from ..target import Target

MODES = (128, 64, 32)  # bytes; TMA and wgmma have exactly these (and none)

SWIZZLE_WIDTH = Rule(
    id="swizzle-width",
    says="the swizzle must divide the row's bytes",
    because="A swizzled box has an inner dimension of exactly the swizzle span; a row that is no multiple of it "
    "would leave a ragged box.",
)
RULES = (SWIZZLE_WIDTH,)


def assign_swizzle(kernel: Kernel, target: Target) -> Kernel:
    """Give operands and D the widest swizzle that divides their row, unless one is asked for. Sets
    Smem.swizzle."""
    return replace(kernel, smem=tuple(replace(s, swizzle=_swizzle(s)) for s in kernel.smem))


def _swizzle(s: Smem) -> int:
    if s.use in ("blocks", "scales", "map"):
        return 0
    row = s.cols * s.dtype.bytes
    fits = [mode for mode in MODES if row % mode == 0]
    if s.swizzle is None:
        return max(fits, default=0)
    if s.swizzle and s.swizzle not in fits:
        values = {"buffer": s.name, "row_bytes": row, "swizzle": s.swizzle}
        raise IllegalConfig(SWIZZLE_WIDTH, values, f"Use one of {[*fits, 0]}, or null to choose.")
    return s.swizzle
