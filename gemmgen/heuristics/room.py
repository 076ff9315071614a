"""What a tile takes at least, known from its kernel before it is lowered, which takes ten times as long."""

from __future__ import annotations

from ..config import Config
from ..cost_launch import ceil, count_tiles
from ..errors import IllegalConfig
from ..ir.row_sums import fold_rows
from ..levers import LEVERS
from ..passes.add_shares import add_shares
from ..passes.layout_smem import stages_at_most
from ..passes.split_registers import fit_at_most
from ..passes.swap_operands import swap_operands
from ..pipeline import build
from ..problem import Problem, Shape
from ..target import Target

PROBE = 2  # stages a tile is probed with: one is filled while the other is read
LARGE_TILE = 128 * 192  # elements; from here on 3 stages cover the latency, below 4 are needed


def useful_stages(problem: Problem, c: Config, shape: Shape, target: Target) -> int:
    """As many as K has blocks for; where an epilogue sums rows, whose K is short, as a CTA's tiles have."""
    blocks = ceil(shape[2] * problem.a.bytes, c.block_k_bytes)
    if fold_rows(problem.epilogue) > 1:
        blocks *= ceil(count_tiles(c, shape), target.sms)
    return max(PROBE, ceil(blocks, c.split_k))


def needed_stages(problem: Problem, c: Config, shape: Shape, target: Target) -> int:
    """The fewest that hide latency, or are all that K has blocks for."""
    hiding = 3 if c.block_m * c.block_n >= LARGE_TILE else 4
    hiding += sum(x.hides for x in LEVERS if x.hides and not x.plain(c))
    return min(hiding, useful_stages(problem, c, shape, target))


def has_none(problem: Problem, c: Config, shape: Shape, target: Target) -> bool:
    """Whether `c` is sure to be refused, or to be left with too few stages, whatever it shares. What is not sure
    is left to the passes, which alone refuse."""
    try:
        # Nothing later takes less.
        kernel = swap_operands(build(problem, c), target, c.swap_ab)
        kernel = add_shares(kernel, target, c.shares)
    except IllegalConfig:
        return False
    if not fit_at_most(kernel, target):
        return True
    # D is built whole, and takes less where a pass divides it into pieces.
    needed = needed_stages(problem, c, shape, target)
    return not c.d_columns and stages_at_most(kernel, target) < needed
