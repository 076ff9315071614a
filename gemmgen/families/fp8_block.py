"""D = epilogue((A * scale_a) @ (B * scale_b)^T): FP8 or INT8, A scaled 1x128 along K, B scaled 128x128.

The tensor core's FP8 accumulator keeps about 14 bits, so each 128 of K is promoted to FP32 on CUDA cores.
"""

from __future__ import annotations

from dataclasses import replace

from ..config import Config
from ..ir.dtypes import F32
from ..ir.nodes import (
    Copy,
    ForChunks,
    ForK,
    Kernel,
    LoadBlockScales,
    LoadRowScales,
    Param,
    Piece,
    Promote,
    Registers,
    ShareScales,
    TileBody,
    Wait,
    Zero,
)
from ..ir.promotion import LANES
from ..problem import Problem
from .common import accumulators, assemble, partial, pieces, promoted, row_scales
from .operands import scales_of
from .output import epilogue, group_stride


def build(p: Problem, c: Config) -> Kernel:
    """Each wave of 64 rows multiplies one K block (or a part of its columns) into `part` and promotes it
    into its accumulator."""
    acc, g = accumulators(p, c, F32), p.grouped
    rows = tuple(map(row_scales, range(c.waves)))
    names = ("block_scales", "lane_scales", "next_scales")
    cols = tuple(Registers(name=n, dtype=F32, count=1) for n in names)
    # B's scales come straight from global memory, each lane a K block's, a chunk ahead of their use.
    first = LoadBlockScales(dst="next_scales", tensor="scale_b", count=1, block="first")
    turn = (Copy(dst="lane_scales", src="next_scales"), replace(first, block="next"))
    step = (
        *(Wait(barrier="full"), ShareScales(dst="block_scales", src="lane_scales")),
        *(_piece(p, c, *piece) for piece in pieces(c)),
    )
    loop = ForK(body=step, unroll=c.unroll, of="chunk")
    scales = scales_of("a", "m", c.block_m, c, grouped=g.rows)
    return assemble(
        p,
        c,
        locals=(*acc, partial(p, c), *rows, *cols),
        tile=TileBody(
            setup=(*(Zero(dst=a.name) for a in acc), first),
            main=(ForChunks(blocks=LANES, body=(*turn, loop)),),
            epilogue=epilogue(p, c),
        ),
        maps=scales.maps,
        smem=(scales.smem,),
        loads=(scales.load,),
        params=(
            Param(name="scale_b", ctype="const float*"),
            Param(name="scale_b_stride_n", ctype="int"),
            Param(name="scale_b_stride_k", ctype="int"),
            *group_stride("scale_b", grouped=g.columns),
        ),
    )


def _piece(p: Problem, c: Config, wave: int, part: int, last: bool) -> Piece:
    rows = LoadRowScales(dst=row_scales(wave).name, smem="smem_scale_a", wave=wave)
    promote = Promote(
        dst=f"acc{wave}",
        src="part",
        row_scales=rows.dst,
        block_scales="block_scales",
        part=part,
    )
    return promoted(p, c, wave, part, last, loads=(rows,) * (part == 0), by=promote)
