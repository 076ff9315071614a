"""D = epilogue((A * scale_a) @ (B * scale_b)^T): FP8, both operands scaled 1x128 along K.

The recipe of weight gradients: neither operand is a weight, so neither has 128x128 blocks. Promoted every
128 of K.
"""

from __future__ import annotations

from ..config import Config
from ..ir.dtypes import F32
from ..ir.nodes import (
    ForK,
    Kernel,
    LoadColumnScales,
    LoadRowScales,
    Piece,
    Promote,
    Registers,
    TileBody,
    Wait,
    Zero,
)
from ..problem import Problem
from .common import accumulators, assemble, partial, pieces, promoted, row_scales
from .operands import scales_of
from .output import epilogue


def build(p: Problem, c: Config) -> Kernel:
    """Each wave of 64 rows multiplies one K block (or a part of its columns) into `part` and promotes it
    into its accumulator."""
    acc, g = accumulators(p, c), p.grouped
    part = partial(p, c)
    rows = tuple(map(row_scales, range(c.waves)))
    columns = Registers(name="column_scales", dtype=F32, count=part.count // 2)
    step = (Wait(barrier="full"), *(_piece(p, c, *piece) for piece in pieces(c)))
    scales = (
        scales_of("a", "m", c.block_m, c, grouped=g.rows),
        scales_of("b", "n", c.block_n, c, grouped=g.columns),
    )
    return assemble(
        p,
        c,
        locals=(*acc, part, *rows, columns),
        tile=TileBody(
            setup=tuple(Zero(dst=a.name) for a in acc),
            main=(ForK(body=step, unroll=c.unroll),),
            epilogue=epilogue(p, c),
        ),
        maps=tuple(m for x in scales for m in x.maps),
        smem=tuple(x.smem for x in scales),
        loads=tuple(x.load for x in scales),
    )


def _piece(p: Problem, c: Config, wave: int, part: int, last: bool) -> Piece:
    rows = LoadRowScales(dst=row_scales(wave).name, smem="smem_scale_a", wave=wave)
    # A part's columns have the same scales in every wave.
    columns = LoadColumnScales(dst="column_scales", smem="smem_scale_b", part=part)
    promote = Promote(
        dst=f"acc{wave}",
        src="part",
        row_scales=rows.dst,
        column_scales="column_scales",
        by="columns",
        part=part,
    )
    loads = (*(columns,) * (wave == 0 or c.parts > 1), *(rows,) * (part == 0))
    return promoted(p, c, wave, part, last, loads=loads, by=promote)
