"""The pipeline, in order. A pass is `(Kernel, Target) -> Kernel`, or takes besides what is asked of it; nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError, Rule
from ..ir.nodes import Kernel
from ..ir.verify import verify
from ..levers import MORE
from ..target import Target
from . import (
    add_shares,
    assign_swizzle,
    check_output,
    check_ring,
    check_tile,
    gather_rows,
    index_rows,
    layout_smem,
    load_ahead,
    load_pages,
    one_block,
    overlap_promotion,
    peek_ahead,
    plan_multicast,
    read_direct,
    read_lane_scales,
    reduce_all,
    scatter_rows,
    size_barriers,
    slice_k,
    split_boxes,
    split_k,
    split_output,
    split_registers,
    split_scales,
    stream_k,
    swap_operands,
    take_slots,
    take_turns,
)
from .allow_empty import allow_empty
from .check_complete import check_complete
from .choose_stores import choose_stores
from .derive_maps import derive_maps
from .guard_waits import guard_waits
from .hold_arguments import hold_arguments
from .instrument import instrument
from .join_parts import join_parts
from .keep_address import keep_address
from .overlap_launches import overlap_launches
from .pad_epilogue import pad_epilogue
from .plan_descriptors import plan_descriptors
from .store_sums import store_sums

Observer = Callable[[str, Kernel], None]


@dataclass(frozen=True)
class Step:
    """A pass in its place. of: the field of a config whose value it is handed, None if it takes none."""

    by: Callable[..., Kernel]
    of: str | None = None

    @property
    def name(self) -> str:
        return self.by.__name__

    def __call__(self, kernel: Kernel, target: Target, asked: Mapping[str, Any]) -> Kernel:
        return self.by(kernel, target, *(() if self.of is None else (asked[self.of],)))


PIPELINE: tuple[Step, ...] = (
    Step(swap_operands.swap_operands, "swap_ab"),  # nothing later asks which operand is whose
    Step(check_tile.check_tile),  # before anything divides by a tile side
    Step(check_ring.check_ring),
    Step(check_output.check_output),
    Step(store_sums),  # the epilogue is the family's; nothing later asks for what it stages
    Step(hold_arguments),  # who reads them is known; adds registers
    Step(split_scales.split_scales),  # widens registers, so before split_registers
    # B's scales have their registers; no map, buffer or load of A's is planned yet.
    Step(read_lane_scales.read_lane_scales, "lane_scales"),
    Step(take_turns.take_turns, "ping_pong"),  # K loops are as many as copies; divides no K
    # The accumulators are those of the waves; its loads are not multicast.
    Step(split_k.split_k, "split_k"),
    Step(stream_k.stream_k, "stream"),  # the same, where no cluster is
    # Scales are read by lanes, and who has which K blocks is known; nothing of a ring is planned yet.
    Step(read_direct.read_direct, "direct"),
    Step(take_slots.take_slots, "slots"),  # it is known what is loaded, and when
    Step(add_shares.add_shares, "shares"),  # who sums which K blocks is known, and what holds sums
    # The same; sums are of all rows of the tile, and D is not yet in pieces.
    Step(slice_k.slice_k, "slice_k"),
    Step(plan_multicast.plan_multicast),  # decides slices, so before boxes are cut
    Step(allow_empty),  # every release is spelled, every K is divided
    Step(derive_maps),  # every load is, and the producer's Drain is in place
    Step(assign_swizzle.assign_swizzle),
    Step(pad_epilogue),  # pads only what is left unswizzled
    # The slabs of the whole tile are known, its stores not yet spelled.
    Step(split_output.split_output, "d_columns"),
    Step(choose_stores),  # a padded row cannot leave through a TMA box; may drop a map
    # Sums are whole, and pieces of the epilogue are spelled.
    Step(scatter_rows.scatter_rows, "outbox"),
    Step(reduce_all.reduce_all),  # the same
    Step(gather_rows.gather_rows),  # the scales that lanes read are known, K is whole
    Step(index_rows.index_rows),  # needs swizzles; what is copied has no boxes
    Step(load_pages.load_pages),  # needs slabs (swizzle); boxes are of pages
    Step(split_boxes.split_boxes),  # needs slabs (swizzle) and slices (multicast)
    Step(plan_descriptors),  # needs slabs
    Step(overlap_promotion.overlap_promotion),  # needs every load before a wgmma; adds registers
    Step(peek_ahead.peek_ahead, "peek"),  # every release is in place; adds a register
    Step(join_parts),  # nothing later asks what a statement is for
    Step(one_block.one_block, "one_block"),  # what a tile does stands in one sequence
    Step(size_barriers.size_barriers),  # needs every box and every release
    Step(layout_smem.layout_smem),  # needs pads and alignments
    Step(guard_waits, "watchdog"),  # every wait is in place; a watched one takes registers
    Step(split_registers.split_registers),
    Step(keep_address),  # the epilogue is final
    Step(overlap_launches, "pdl"),  # after whatever else the prologue does
    Step(
        load_ahead.load_ahead, "weights_ahead"
    ),  # the wait is there; the boxes and bytes are final
    Step(instrument, "stamps"),  # every statement that takes time is in place
    Step(check_complete),
)
RULES: tuple[Rule, ...] = (
    *swap_operands.RULES,
    *check_tile.RULES,
    *check_ring.RULES,
    *check_output.RULES,
    *split_scales.RULES,
    *read_lane_scales.RULES,
    *take_turns.RULES,
    *split_k.RULES,
    *stream_k.RULES,
    *read_direct.RULES,
    *take_slots.RULES,
    *add_shares.RULES,
    *slice_k.RULES,
    *plan_multicast.RULES,
    *assign_swizzle.RULES,
    *split_output.RULES,
    *scatter_rows.RULES,
    *gather_rows.RULES,
    *index_rows.RULES,
    *load_pages.RULES,
    *split_boxes.RULES,
    *overlap_promotion.RULES,
    *peek_ahead.RULES,
    *one_block.RULES,
    *size_barriers.RULES,
    *layout_smem.RULES,
    *split_registers.RULES,
    *load_ahead.RULES,
)


def steps() -> Iterator[Step]:
    """PIPELINE, with the passes of levers that were added where they say. Raises ArgumentError for a place that there is
    not."""
    for lever in MORE.values():
        if lever.before not in {p.name for p in PIPELINE}:
            allowed = "must name a pass: " + ", ".join(p.name for p in PIPELINE)
            raise ArgumentError("before", lever.before, allowed)
    for p in PIPELINE:
        yield from (
            Step(x.lowers, x.name) for x in MORE.values() if x.lowers and x.before == p.name
        )
        yield p


def run(
    kernel: Kernel, target: Target, asked: Mapping[str, Any], observer: Observer | None = None
) -> Kernel:
    """Lower `kernel` through PIPELINE, verifying what each pass returns. asked: values by Step.of.
    `observer(pass name, kernel)` may look, not change. Raises IllegalConfig where a rule is broken, IRError where
    gemmgen is."""
    verify(kernel)
    for p in steps():
        lowered = p(kernel, target, asked)
        # What a pass leaves as it is was verified.
        kernel = kernel if lowered is kernel else verify(lowered)
        if observer:
            observer(p.name, kernel)
    return kernel
