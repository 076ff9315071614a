"""Where a row of D is the sum of some of the product's, store it from registers, and of tiles that no window reaches nothing else."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from ..ir.blocks import is_if
from ..ir.nodes import (
    If,
    Kernel,
    PrefetchMap,
    StageTile,
    Stmt,
    StoreCommit,
    StoreTail,
    StoreTile,
    StoreValues,
    StoreWait,
    TileBody,
)
from ..ir.rewrite import map_body, map_stmts, walk
from ..ir.row_sums import compact
from ..ir.syncs import is_fence, is_sync
from ..target import Target

Of = Literal["sums", "window"]


def store_sums(kernel: Kernel, target: Target) -> Kernel:
    """All four lanes of a quad have a sum, and a warp's lie side by side in D: there is nothing to gain from shared memory, and two
    meetings of each warpgroup to lose. Replaces what stages and stores; D's buffer takes no memory, and no map describes it. A tile without
    K blocks is one that no window reaches: its D is minus infinity, whatever the epilogue, or, where rows begin with their windows, none."""
    if kernel.block.fold_rows == 1:
        return kernel
    of: Of = "window" if compact(kernel.params) else "sums"
    return replace(
        map_stmts(kernel, partial(_stored, of=of)),
        smem=tuple(s for s in kernel.smem if s.use != "output"),
        unstaged=tuple(s for s in kernel.smem if s.use == "output"),
        maps=tuple(m for m in kernel.maps if m.tensor != "d"),
    )


def _stored(s: Stmt, of: Of) -> Stmt | tuple[Stmt, ...]:
    match s:
        case TileBody() if s.epilogue:
            sums = map_body(s.epilogue, partial(_from_registers, of=of))
            waves = [x.wave for x in walk(sums) if isinstance(x, StoreValues)]
            outside = tuple(StoreValues(tensor="d", wave=w, of="outside") for w in waves)
            none = If(when="no_blocks", body=outside)
            stored = (If(when="has_blocks", body=sums), *(none,) * (of == "sums"))
            return replace(s, epilogue=stored)
        case PrefetchMap(tensor_map="map_d"):
            return ()
        case If(when="leader", body=(StoreWait(),)):
            return ()
    return s


def _from_registers(s: Stmt, of: Of) -> Stmt | tuple[Stmt, ...]:
    """What the epilogue is without shared memory."""
    staging = StoreWait | StoreTile | StoreCommit | StoreTail
    if isinstance(s, staging) or is_sync(s, "warpgroup") or is_fence(s, "async"):
        return ()
    if isinstance(s, StageTile):
        return StoreValues(tensor="d", wave=s.wave, of=of, src=s.src, value=s.value)
    return () if is_if(s, "leader") and not s.body else s
