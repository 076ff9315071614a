"""D = epilogue((A * scale_a) @ B^T): FP8, A scaled 1x128 along K, B MXFP4, which becomes FP8 in the registers of wgmma's A, as in `w4a8`; or INT4
scaled 1x128 along K.

Each 128 of K is promoted by its rows' scales of A, which are columns of the accumulator, and of INT4 by those of B's rows. A row's own exponent of MXFP4 is the
epilogue's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import Config
from ..ir.decoding import HALVES
from ..ir.dtypes import F32
from ..ir.nodes import (
    Arrive,
    ForK,
    Kernel,
    LoadColumnScales,
    Piece,
    Promote,
    Registers,
    TileBody,
    Wait,
    WgmmaWait,
    Zero,
)
from ..ir.packed import Form
from ..problem import Problem
from .common import accumulators, assemble, partial, row_scales
from .operands import blocks_of_b, scales_of
from .output import epilogue
from .w4a16 import decoded, held

SCALES = "column_scales"  # packed weights are swapped: A's rows are the accumulator's columns


def build(p: Problem, c: Config) -> Kernel:
    """Each wave of 64 rows of B decodes one half of its K block while the other is multiplied into `part`, and promotes that."""
    form, g = p.form, p.grouped
    assert form is not None
    acc, part = accumulators(p, c), partial(p, c)
    columns = Registers(name=SCALES, dtype=F32, count=part.count // 2)
    rows = tuple(map(row_scales, range(c.waves))) * form.scales_sums
    pieces = (_piece(p, c, form, w, half) for w in range(c.waves) for half in range(HALVES))
    scales = scales_of("a", "m", c.block_m, c, grouped=g.rows)
    return assemble(
        p,
        c,
        locals=(*acc, part, columns, *rows, *held(form)),
        tile=TileBody(
            setup=tuple(Zero(dst=a.name) for a in acc),
            main=(ForK(body=(Wait(barrier="full"), *pieces), unroll=c.unroll),),
            epilogue=epilogue(p, c),
        ),
        maps=scales.maps,
        smem=(scales.smem,),
        loads=(scales.load,),
        b=blocks_of_b(p, c, form),
    )


def _piece(p: Problem, c: Config, form: Form, wave: int, half: int) -> Piece:
    """Scales come with the first, for all waves; the sum is whole with the second, and with the last wave's the stage is released."""
    piece = decoded(p, c, form, wave, half, dst="part", fresh="never" if half else "block")
    if not half:
        scales = LoadColumnScales(dst=SCALES, smem="smem_scale_a")
        return replace(piece, loads=((scales,) * (wave == 0) + piece.loads))
    by: dict[str, Any] = {"by": "column"}
    if form.scales_sums:
        by = {"by": "columns", "row_scales": row_scales(wave).name}
    promote = Promote(dst=f"acc{wave}", src="part", column_scales=SCALES, **by)
    return replace(
        piece,
        wait=(WgmmaWait(pending=c.in_flight),),
        release=(Arrive(barrier="empty"),) * (wave == c.waves - 1),
        promote=(promote,),
    )
