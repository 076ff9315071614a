"""How long the operations of an unrolled kernel take: the cost model's terms, in whole SM cycles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType

from ..config import Config
from ..cost import operand_bytes, terms
from ..cost_fit import FIT
from ..cost_terms import Terms
from ..errors import ArgumentError
from ..ir import nodes as ir
from ..ir.promotion import PROMOTION
from ..ir.rewrite import statements, walk
from ..levers.split_k import EXCHANGE, EXCHANGE_RATE
from ..problem import Problem, Shape
from ..target import Target


@dataclass(frozen=True, kw_only=True)
class Latency:
    """SM cycles unless said otherwise. Every operation that is not named here takes none.

    tensor, multiply: of one Mma, at the tensor core's rate, and as long as it keeps the tensor core: shared
    memory may feed it slower. drain: from a group's end until its warpgroup goes on, within a K block.
    promote: one promotion, and its loads of scales. decode: one statement that makes numbers of codes.
    stage: one wave of D, or a piece of it, into shared memory.
    load: what one CTA loads for a K block, `load_bytes` into shared memory, one box after the other.
    store: a CTA's tile of D, `d_elements`. Both go through one port per SM, first come, first served.
    flight: from a load's last byte at the port until it counts on its barrier, or is there for threads that copy it, and from a store's until it
    is written. remote: until an arrival reaches another CTA's barrier.
    adding: until the sums of warpgroups that divide K are one. exchange: the same for the partial sums of CTAs
    that divide K, of which rank 0 takes `exchange_rate` bytes per cycle.
    """

    tensor: int
    multiply: int
    drain: int
    promote: int
    stage: int
    load: int
    load_bytes: int
    store: int
    d_elements: int
    # Estimates, not measured: the cost model's terms are rates, and these hide under a full ring.
    flight: int = 700
    remote: int = 200
    exchange: int = 0
    exchange_rate: float = 1.0
    decode: int = 0
    adding: int = 0


def latency(
    kernel: ir.Kernel, p: Problem, c: Config, shape: Shape, target: Target, groups: int = 1
) -> Latency:
    """Of `kernel`, lowered from `p` and `c`, in a launch of `groups` times `shape`. Raises ArgumentError for a
    side below 1, and for a kernel without a ring."""
    if not kernel.ring:
        allowed = (
            "must be false where times are simulated: those of loads into registers are not known"
        )
        raise ArgumentError("direct", c.direct, allowed)
    t = terms(p, c, shape, target, groups)
    w = t.work
    promotes = _count(kernel, PROMOTION)
    multiplies = kernel.consumers * _count(kernel, ir.Mma)
    waits = max(1, sum(s.pending == 0 for s in _of_k_block(kernel) if isinstance(s, ir.WgmmaWait)))
    scales = w.scales / w.steps
    between = w.promotion / w.steps + scales  # of one warpgroup, per K block
    drains = min(between, c.waves * FIT.drain)
    own = max(1, w.steps // c.slices)  # K blocks of a warpgroup
    load, store = _memory(p, c, shape, t)
    return Latency(
        tensor=round(w.tensor / w.steps / multiplies),
        multiply=round(max(w.tensor, w.shared - w.scales) / w.steps / multiplies),
        drain=round(drains / waits),
        promote=round((between - drains) / max(1, promotes)),
        stage=round((w.epilogue - w.exchange) / _stages(kernel)),
        load=round(load),
        load_bytes=sum(_box_bytes(kernel, s) for s in statements(kernel)),
        store=round(store),
        d_elements=kernel.block.d_m * kernel.block.d_n,
        decode=round(w.decoding / own / max(1, _count(kernel, ir.Decode))),
        adding=round(w.exchange) * (c.slices > 1),
        exchange=round(EXCHANGE),
        exchange_rate=EXCHANGE_RATE,
    )


def _memory(p: Problem, c: Config, shape: Shape, t: Terms) -> tuple[float, float]:
    """Cycles to load a K block, and to store D's tile: L2's, or HBM's if a wave takes longer from there."""
    w = t.work
    of_d, total = w.d_bytes / w.l2_bytes, t.full.l2
    hbm = t.hbm * t.clock_hz / t.waves
    if hbm > total:
        parts = operand_bytes(p, shape)
        of_d, total = parts["d"] / sum(parts.values()), hbm
    return total * (1 - of_d) / w.steps, total * of_d * c.split_k


def _of_k_block(kernel: ir.Kernel) -> Iterator[ir.Stmt]:
    """What the loops over K hold."""
    loops = (s for s in statements(kernel) if isinstance(s, ir.ForK) and s.of != "ahead")
    return (s for loop in loops for s in walk(loop.body))


def _count(kernel: ir.Kernel, kinds: type | UnionType) -> int:
    return sum(isinstance(s, kinds) for s in _of_k_block(kernel))


def _stages(kernel: ir.Kernel) -> int:
    """What brings a wave's, or a piece's, values where they leave from; a store from registers does itself."""
    staged = ir.StageTile | ir.StoreValues
    return sum(isinstance(s, staged) and bool(s.src) for s in statements(kernel))


def _box_bytes(kernel: ir.Kernel, s: ir.Stmt) -> int:
    """What it loads for a K block; so do threads that copy rows, and bulk copies of blocks."""
    if isinstance(s, ir.CopyRows | ir.LoadBlocks):
        return kernel.buffer(s.smem).stage_bytes
    if not isinstance(s, ir.TmaLoad):
        return 0
    rows, columns = kernel.map(s.tensor_map).box or (0, 0)
    return rows * columns * kernel.buffer(s.smem).dtype.bytes
