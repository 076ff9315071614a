"""The pipeline, in order. A pass is `(Kernel, Target) -> Kernel`; nothing else."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import Rule
from ..ir.nodes import Kernel
from ..ir.verify import verify
from ..target import Target
from . import (
    assign_swizzle,
    check_output,
    check_ring,
    check_tile,
    layout_smem,
    overlap_promotion,
    peek_ahead,
    plan_multicast,
    size_barriers,
    split_boxes,
    split_k,
    split_output,
    split_registers,
    split_scales,
    swap_operands,
    take_turns,
)
from .allow_empty import allow_empty
from .check_complete import check_complete
from .choose_stores import choose_stores
from .derive_maps import derive_maps
from .guard_waits import guard_waits
from .instrument import instrument
from .keep_address import keep_address
from .overlap_launches import overlap_launches
from .pad_epilogue import pad_epilogue
from .plan_descriptors import plan_descriptors

Pass = Callable[[Kernel, Target], Kernel]
Observer = Callable[[str, Kernel], None]

PIPELINE: tuple[Pass, ...] = (
    swap_operands.swap_operands,  # nothing later asks which operand is whose
    check_tile.check_tile,  # before anything divides by a tile side
    check_ring.check_ring,
    check_output.check_output,
    split_scales.split_scales,  # widens registers, so before split_registers
    take_turns.take_turns,  # the K loops are as many as there are copies; divides no K
    split_k.split_k,  # the accumulators are those of the waves; its loads are not multicast
    plan_multicast.plan_multicast,  # decides slices, so before boxes are cut
    allow_empty,  # every release is spelled, every K is divided
    derive_maps,  # every load is, and the producer's Drain is in place
    assign_swizzle.assign_swizzle,
    pad_epilogue,  # pads only what is left unswizzled
    split_output.split_output,  # the slabs of the whole tile are known, its stores not yet spelled
    choose_stores,  # a padded row cannot leave through a TMA box; may drop a map
    split_boxes.split_boxes,  # needs slabs (swizzle) and slices (multicast)
    plan_descriptors,  # needs slabs
    overlap_promotion.overlap_promotion,  # needs every load before a wgmma; adds registers
    peek_ahead.peek_ahead,  # every release is in place; adds a register
    size_barriers.size_barriers,  # needs every box and every release
    layout_smem.layout_smem,  # needs pads and alignments
    split_registers.split_registers,
    keep_address,  # the epilogue is final
    guard_waits,  # every wait is in place
    overlap_launches,  # after whatever else the prologue does
    instrument,  # every statement that takes time is in place
    check_complete,
)
RULES: tuple[Rule, ...] = (
    *swap_operands.RULES,
    *check_tile.RULES,
    *check_ring.RULES,
    *check_output.RULES,
    *split_scales.RULES,
    *take_turns.RULES,
    *split_k.RULES,
    *plan_multicast.RULES,
    *assign_swizzle.RULES,
    *split_output.RULES,
    *split_boxes.RULES,
    *overlap_promotion.RULES,
    *peek_ahead.RULES,
    *size_barriers.RULES,
    *layout_smem.RULES,
    *split_registers.RULES,
)


def run(kernel: Kernel, target: Target, observer: Observer | None = None) -> Kernel:
    """Lower `kernel` through PIPELINE, verifying what each pass returns. `observer(pass name, kernel)` may
    look, not change. Raises IllegalConfig where a rule is broken, IRError where gemmgen is."""
    verify(kernel)
    for p in PIPELINE:
        lowered = p(kernel, target)
        # What a pass leaves as it is was verified.
        kernel = kernel if lowered is kernel else verify(lowered)
        if observer:
            observer(p.__name__, kernel)
    return kernel
