"""Where asked, let the consumers' lanes read A's scales from global memory, in whichever layout they lie there."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.dtypes import F32
from ..ir.nodes import (
    Copy,
    ForChunks,
    Kernel,
    LoadBlockScales,
    LoadColumnScales,
    LoadRowScales,
    Param,
    PrefetchMap,
    Registers,
    ShareScales,
    Stmt,
    TmaLoad,
    TmaMap,
)
from ..ir.promotion import HELD_BLOCKS
from ..ir.rewrite import map_role, map_stmts, statements
from ..target import Target

LANE_SCALES = Rule(
    id="lane-scales",
    says="lane_scales needs an A with a scale per row, and a B with one per block of rows, for every 128 of K",
    because="Lanes hold A's scales of a chunk of K blocks and share them as they do B's. Without scales there is nothing to "
    "read, and scales of columns come with their K block's stage.",
)
RULES = (LANE_SCALES,)

ROWS, ALL_ROWS = "lane_rows", "lane_columns"
NEXT = "next_"


def read_lane_scales(kernel: Kernel, target: Target, lane_scales: bool) -> Kernel:
    """With `lane_scales`, A's scales are no load of a stage: each warp loads those of HELD_BLOCKS K blocks straight from
    global memory, a chunk ahead, and its lanes share them. Sets ForChunks.blocks; drops the tensor map, the buffer and
    the loads of A's scales, adds what points to them and the registers that hold them."""
    if not lane_scales:
        return kernel
    loads = [s for s in statements(kernel) if isinstance(s, LoadRowScales | LoadColumnScales)]
    if not loads or not any(isinstance(s, LoadBlockScales) for s in statements(kernel)):
        values = {"lane_scales": True, "scales": len(loads)}
        raise IllegalConfig(LANE_SCALES, values, "Use lane_scales=false.")
    (smem,) = {s.smem for s in loads}
    (scales,) = (m for m in kernel.maps if m.smem == smem)
    held = _held(kernel, loads, scales)
    kernel = map_stmts(kernel, lambda s: _read(s, scales, held))
    added = tuple(
        Registers(name=n, dtype=F32, count=x.count) for x in held for n in (x.dst, _own(x))
    )
    kernel = map_role(kernel, "consumer", lambda r: replace(r, locals=(*r.locals, *added)))
    return replace(
        kernel,
        maps=tuple(m for m in kernel.maps if m != scales),
        smem=tuple(s for s in kernel.smem if s.name != smem),
        params=(*kernel.params, *_params(scales)),
    )


def _held(
    kernel: Kernel, loads: list[LoadRowScales | LoadColumnScales], scales: TmaMap
) -> tuple[LoadBlockScales, ...]:
    """The loads of the first chunk: of each wave's rows, or, where they are the accumulator's columns, of all the tile's."""
    counts = {r.name: r.count for r in kernel.consumer.locals}
    return tuple(
        LoadBlockScales(
            dst=f"{NEXT}{ROWS}{s.wave}",
            tensor=scales.tensor,
            count=counts[s.dst],
            block="first",
            of="rows",
            wave=s.wave,
        )
        if isinstance(s, LoadRowScales)
        # A thread has two columns of every eight.
        else LoadBlockScales(
            dst=f"{NEXT}{ALL_ROWS}",
            tensor=scales.tensor,
            count=counts[s.dst] // 2,
            block="first",
            of="all_rows",
        )
        for s in loads
    )


def _own(s: LoadBlockScales) -> str:
    """Where the chunk at hand has what was loaded ahead of it."""
    return s.dst.removeprefix(NEXT)


def _read(s: Stmt, scales: TmaMap, held: tuple[LoadBlockScales, ...]) -> Stmt | tuple[Stmt, ...]:
    match s:
        case LoadRowScales():
            return ShareScales(dst=s.dst, src=f"{ROWS}{s.wave}", of="rows")
        case LoadColumnScales():
            return ShareScales(dst=s.dst, src=ALL_ROWS, of="columns")
        case TmaLoad() | PrefetchMap() if s.tensor_map == scales.name:
            return ()
        case ForChunks():
            return replace(s, blocks=HELD_BLOCKS)
        case Copy():  # of B's: what was loaded ahead is the chunk's
            return (s, *(Copy(dst=_own(x), src=x.dst) for x in held))
        case LoadBlockScales():
            return (s, *(replace(x, block=s.block) for x in held))
    return s


def _params(scales: TmaMap) -> tuple[Param, ...]:
    """A pointer and strides in elements, as B's."""
    name = scales.tensor
    strides = (Param(name=f"{name}_stride_{axis}", ctype="int") for axis in "mk")
    own = (Param(name=f"{name}_stride_g", ctype="long long"),) * scales.grouped
    return (Param(name=name, ctype="const float*"), *strides, *own)
