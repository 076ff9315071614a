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
RAGGED_ROWS = Rule(
    id="ragged-rows",
    says="the output of groups that end at any row cannot be swizzled",
    because="A tile's rows past the group's end belong to somebody else, so rows leave one by one, "
    "and a bulk copy does not undo a swizzle.",
)
RULES = (SWIZZLE_WIDTH, RAGGED_ROWS)


def assign_swizzle(kernel: Kernel, target: Target) -> Kernel:
    """Give operands and D the widest swizzle that divides their row, unless one is asked for. D of
    ragged groups has none. Sets Smem.swizzle."""
    smem = kernel.smem
    if kernel.groups.ragged:
        smem = tuple(_flat(s) if s.use == "output" else s for s in smem)
    return replace(kernel, smem=tuple(replace(s, swizzle=_swizzle(s)) for s in smem))


def _flat(s: Smem) -> Smem:
    if s.swizzle:
        values = {"buffer": s.name, "swizzle": s.swizzle}
        raise IllegalConfig(RAGGED_ROWS, values, "Use swizzle_d=0, or null to choose.")
    return replace(s, swizzle=0)


def _swizzle(s: Smem) -> int:
    if s.use in ("scales", "map"):
        return 0
    row = s.cols * s.dtype.bytes
    fits = [mode for mode in MODES if row % mode == 0]
    if s.swizzle is None:
        return max(fits, default=0)
    if s.swizzle and s.swizzle not in fits:
        values = {"buffer": s.name, "row_bytes": row, "swizzle": s.swizzle}
        raise IllegalConfig(SWIZZLE_WIDTH, values, f"Use one of {[*fits, 0]}, or null to choose.")
    return s.swizzle
