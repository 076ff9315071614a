"""Choose how rows are swizzled across the shared-memory banks: one mode for TMA and wgmma alike."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.heads import NO_GAPS, Heads
from ..ir.nodes import Kernel, Smem, SumSquares
from ..ir.rewrite import statements
from ..target import Target

MODES = (128, 64, 32)  # bytes; TMA and wgmma have exactly these (and none)

SWIZZLE_WIDTH = Rule(
    id="swizzle-width",
    says="the swizzle must divide the row's bytes",
    because="A swizzled box has an inner dimension of exactly the swizzle span; a row that is no multiple of it "
    "would leave a ragged box.",
)
HEADS_BOXES = Rule(
    id="heads-boxes",
    says="a D whose columns have gaps must be swizzled, by what divides the bytes of its heads' left and of their right columns",
    because="A TMA store sends a swizzle's span of columns as one box, over a gap that lies inside it; rows without a swizzle are sent whole.",
)
SQUARES_LINES = Rule(
    id="squares-lines",
    says="sums of squares of A's rows need K blocks of 128 bytes, swizzled by 128",
    because="A quad's lanes read a row's eight pieces of 16 bytes, and eight rows' from other banks each.",
)
RULES = (SWIZZLE_WIDTH, HEADS_BOXES, SQUARES_LINES)


def assign_swizzle(kernel: Kernel, target: Target) -> Kernel:
    """Give operands and D the widest swizzle that divides their row, and of D what lies between gaps, unless one is asked for. Sets
    Smem.swizzle."""
    heads = {m.smem: m.heads for m in kernel.maps}
    smem = (replace(s, swizzle=_swizzle(s, heads.get(s.name, NO_GAPS))) for s in kernel.smem)
    kernel = replace(kernel, smem=tuple(smem))
    for a in (kernel.buffer(s.smem) for s in statements(kernel) if isinstance(s, SumSquares)):
        if (a.swizzle, a.cols * a.dtype.bytes) != (MODES[0], MODES[0]):
            values = {"k_bytes": a.cols * a.dtype.bytes, "swizzle_ab": a.swizzle}
            raise IllegalConfig(SQUARES_LINES, values, "Use block_k_bytes=128 and swizzle_ab=null.")
    return kernel


def _swizzle(s: Smem, heads: Heads) -> int:
    if s.use in ("blocks", "scales", "map"):
        return 0
    row = s.cols * s.dtype.bytes
    fits = [mode for mode in MODES if row % mode == 0]
    if heads.mid:
        return _between_gaps(s, heads, fits)
    if s.swizzle is None:
        return max(fits, default=0)
    if s.swizzle and s.swizzle not in fits:
        values = {"buffer": s.name, "row_bytes": row, "swizzle": s.swizzle}
        raise IllegalConfig(SWIZZLE_WIDTH, values, f"Use one of {[*fits, 0]}, or null to choose.")
    return s.swizzle


def _between_gaps(s: Smem, heads: Heads, fits: list[int]) -> int:
    """The widest of those that fit whose boxes hold no gap, or the one that was asked for."""
    legal = [mode for mode in fits if not heads.cut(mode // s.dtype.bytes)]
    chosen = max(legal, default=0) if s.swizzle is None else s.swizzle
    if chosen in legal:
        return chosen
    values = {"row_bytes": s.cols * s.dtype.bytes, "swizzle": chosen, "heads": str(heads)}
    fix = f"swizzle_d={' or '.join(map(str, legal))}, or null" if legal else "a wider block_n"
    raise IllegalConfig(HEADS_BOXES, values, f"Use {fix}.")
