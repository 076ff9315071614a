"""D = epilogue((A * scale_a) @ (B * scale_b)^T): FP8, both operands scaled 1x128 along K.

The recipe of weight gradients: neither operand is a weight, so neither has 128x128 blocks. Promoted every
128 of K.
"""

from __future__ import annotations

from ..config import Config
from ..ir.dtypes import F32
from ..ir.nodes import (
    Coord,
    ForK,
    Kernel,
    LoadColumnScales,
    LoadRowScales,
    Piece,
    Promote,
    Registers,
    Smem,
    TileBody,
    TmaMap,
    Wait,
    Zero,
)
from ..problem import Problem
from .common import accumulators, assemble, partial, pieces, promoted
from .operands import load, whole
from .output import epilogue


def build(p: Problem, c: Config) -> Kernel:
    """Each wave of 64 rows multiplies one K block (or a part of its columns) into `part` and promotes it
    into its accumulator."""
    acc, g = accumulators(p, c), p.grouped
    part = partial(p, c)
    rows = tuple(Registers(name=f"row_scales{w}", dtype=F32, count=2) for w in range(c.waves))
    columns = Registers(name="column_scales", dtype=F32, count=part.count // 2)
    step = (Wait(barrier="full"), *(_piece(p, c, *piece) for piece in pieces(c)))
    scales = tuple(
        Smem(
            name=f"smem_scale_{x}",
            dtype=F32,
            rows=1,
            cols=whole(side),
            stages=c.stages,
            use="scales",
        )
        for x, side in (("a", c.block_m), ("b", c.block_n))
    )
    sides = (("a", "m", g.rows), ("b", "n", g.columns))
    return assemble(
        p,
        c,
        locals=(*acc, part, *rows, columns),
        tile=TileBody(
            setup=tuple(Zero(dst=a.name) for a in acc),
            main=(ForK(body=step, unroll=c.unroll),),
            epilogue=epilogue(p, c),
        ),
        maps=tuple(
            TmaMap(
                name=f"map_scale_{x}",
                tensor=f"scale_{x}",
                inner=axis,  # type: ignore[arg-type]
                outer="k",
                smem=f"smem_scale_{x}",
                grouped=grouped,
            )
            for x, axis, grouped in sides
        ),
        smem=scales,
        loads=tuple(
            load(f"scale_{x}", Coord(base=f"tile.{x}_row"), Coord(base="k"), grouped=grouped)  # type: ignore[arg-type]
            for x, _, grouped in sides
        ),
    )


def _piece(p: Problem, c: Config, wave: int, part: int, last: bool) -> Piece:
    rows = LoadRowScales(dst=f"row_scales{wave}", smem="smem_scale_a", wave=wave)
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
