"""D = epilogue((A * scale_a) @ (B * scale_b)^T): FP8 or INT8, A scaled 1x128 along K, B scaled 128x128.

The tensor core's FP8 accumulator keeps about 14 bits, so each 128 of K is promoted to FP32 on CUDA cores.
"""

from __future__ import annotations

from ..config import Config
from ..ir.dtypes import F32
from ..ir.groupings import GROUPINGS
from ..ir.nodes import (
    Arrive,
    Coord,
    Copy,
    ForK,
    Kernel,
    LoadBlockScales,
    LoadRowScales,
    Param,
    Promote,
    Registers,
    Smem,
    Stmt,
    TmaMap,
    Wait,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    Zero,
)
from ..problem import Problem
from .common import accumulators, assemble, load, multiply, partial, pieces, whole
from .output import epilogue, group_stride


def build(p: Problem, c: Config) -> Kernel:
    """Each wave of 64 rows multiplies one K block (or a part of its columns) into `part` and promotes it
    into its accumulator."""
    acc, g = accumulators(p, c, F32), GROUPINGS[p.grouping]
    rows = tuple(Registers(name=f"row_scales{w}", dtype=F32, count=2) for w in range(c.waves))
    cols = tuple(Registers(name=n, dtype=F32, count=1) for n in ("block_scales", "next_scales"))
    # B's scales come straight from global memory, fetched one K block ahead of their use.
    fetch = LoadBlockScales(dst="next_scales", tensor="scale_b", count=1, block="next")
    first = LoadBlockScales(dst="next_scales", tensor="scale_b", count=1, block="first")
    step = (
        *(Copy(dst="block_scales", src="next_scales"), fetch, Wait(barrier="full")),
        *(s for piece in pieces(c) for s in _piece(p, c, *piece)),
    )
    scales = Smem(
        name="smem_scale_a",
        dtype=F32,
        rows=1,
        cols=whole(c.block_m),
        stages=c.stages,
        use="scales",
    )
    return assemble(
        p,
        c,
        locals=(*acc, partial(p, c), *rows, *cols),
        tile=(
            *(Zero(dst=a.name) for a in acc),
            first,
            ForK(body=step, unroll=c.unroll),
            *epilogue(p, c),
        ),
        maps=(
            TmaMap(
                name="map_scale_a",
                tensor="scale_a",
                inner="m",
                outer="k",
                smem=scales.name,
                grouped=g.rows,
            ),
        ),
        smem=(scales,),
        loads=(load("scale_a", Coord(base="tile.a_row"), Coord(base="k"), grouped=g.rows),),
        params=(
            Param(name="scale_b", ctype="const float*"),
            Param(name="scale_b_stride_n", ctype="int"),
            Param(name="scale_b_stride_k", ctype="int"),
            *group_stride("scale_b", grouped=g.columns),
        ),
    )


def _piece(p: Problem, c: Config, wave: int, part: int, last: bool) -> tuple[Stmt, ...]:
    rows = LoadRowScales(dst=f"row_scales{wave}", smem="smem_scale_a", wave=wave)
    promote = Promote(
        dst=f"acc{wave}",
        src="part",
        row_scales=rows.dst,
        block_scales="block_scales",
        part=part,
    )
    # The last MMAs are the stage's last readers: release it before promoting.
    release = (Arrive(barrier="empty"),) * last
    return (
        *(rows,) * (part == 0),
        WgmmaFence(),
        multiply(p, c, wave, part),
        WgmmaCommit(),
        WgmmaWait(pending=c.in_flight),
        *release,
        promote,
    )
