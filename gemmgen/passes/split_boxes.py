"""Cut tiles into TMA boxes: one per swizzle span (slab), and one slice per CTA under multicast."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.nodes import Kernel, Smem, Stmt, TmaLoad, TmaMap
from ..ir.rewrite import map_stmts, statements
from ..ir.stmts import multicasts
from ..target import Target

TMA_BOX = Rule(
    id="tma-box",
    says="a TMA box must be at most 256 elements a side and a multiple of 16 bytes along its inner one",
    because="cuTensorMapEncodeTiled encodes box sides in 8 bits and copies 16-byte pieces.",
)
TMA_LOADS = Rule(
    id="tma-loads",
    says="a pipeline stage may take at most 32 TMA loads, 16 where groups split K",
    because="One thread issues them and holds a coordinate for each: 40 spilled under the producer's 40 "
    "registers, and 20 in one that derives tensor maps.",
)
RULES = (TMA_BOX, TMA_LOADS)

MOST_LOADS, MOST_DERIVED = 32, 16


def split_boxes(kernel: Kernel, target: Target) -> Kernel:
    """Repeat each load per slab. Sets TmaMap.box, the loads' offset and rank_bytes."""
    slices = {s.tensor_map: s.slice for s in statements(kernel) if multicasts(s)}
    maps = tuple(_boxed(kernel, m, slices.get(m.name), target) for m in kernel.maps)

    def visit(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        match stmt:
            case TmaLoad(to="cluster"):
                smem = kernel.buffer(stmt.smem)
                unit = smem.dtype.bytes if smem.use == "scales" else smem.slab_bytes
                return _per_slab(smem, replace(stmt, rank_bytes=stmt.slice * unit))
            case TmaLoad():
                return _per_slab(kernel.buffer(stmt.smem), stmt)
        return stmt

    kernel = map_stmts(replace(kernel, maps=maps), visit)
    loads = sum(isinstance(s, TmaLoad) for s in statements(kernel))
    most = MOST_DERIVED if any(m.derived for m in kernel.maps) else MOST_LOADS
    if loads > most:
        values = {"loads": loads, "most": most}
        raise IllegalConfig(TMA_LOADS, values, "Use a smaller tile or a wider swizzle.")
    return kernel


def _boxed(kernel: Kernel, m: TmaMap, slice: int | None, target: Target) -> TmaMap:
    smem = kernel.buffer(m.smem)
    rows = kernel.groups.pages if m.pages else smem.rows
    box = (slice or smem.cols, 1) if smem.use == "scales" else (smem.slab_cols, slice or rows)
    inner_bytes = box[0] * smem.dtype.bytes
    if max(box) > target.tma_box or inner_bytes % target.tma_alignment:
        values = {"map": m.name, "box": box, "inner_bytes": inner_bytes}
        raise IllegalConfig(TMA_BOX, values, "Use a smaller tile or another swizzle.")
    return replace(m, box=box)


def _per_slab(smem: Smem, load: TmaLoad) -> tuple[Stmt, ...]:
    def at(slab: int) -> Stmt:
        inner, *others = load.coords
        inner = replace(inner, offset=inner.offset + slab * smem.slab_cols)
        offset = load.offset + slab * smem.slab_stride
        return replace(load, coords=(inner, *others), offset=offset)

    return tuple(at(slab) for slab in range(smem.slabs))


def box_bytes(kernel: Kernel, load: TmaLoad) -> int:
    """Bytes one execution of `load` lands in each destination CTA (out-of-bounds zeros included)."""
    box = kernel.map(load.tensor_map).box
    assert box is not None
    return box[0] * box[1] * kernel.buffer(load.smem).dtype.bytes
