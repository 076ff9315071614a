"""D = epilogue(A @ B^T), B weights of 4 or 8 bits, which become wgmma's A in registers: D^T = B A^T, FP32 accumulation over the whole of K."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from ..config import Config
from ..ir.codings import REGISTERS
from ..ir.decoding import HALVES, Beside
from ..ir.dtypes import S32
from ..ir.nodes import (
    Decode,
    Fence,
    ForK,
    Kernel,
    MmaDecoded,
    Piece,
    ReadCodes,
    Registers,
    Stmt,
    TileBody,
    Wait,
    WgmmaCommit,
    WgmmaWait,
)
from ..ir.packed import By, Form
from ..problem import Problem
from .common import accumulators, assemble, row_scales, wgmma
from .dense import RELEASES
from .operands import blocks_of_b
from .output import epilogue

Fresh = Literal["block", "tile", "never"]  # `Mma.fresh`
# What lies beside codes in a block, by what numbers are scaled by, or made of.
BESIDE: dict[By, Beside] = {
    **dict.fromkeys(("scale", "zeros", "exponent", "shift"), "records"),
    "whole": "scales",
    **dict.fromkeys(("sign", "offset", "power", "bits"), "nothing"),
}
CODES, RECORDS = "codes", "records"
NUMBERS = ("first_half", "second_half")  # of a K block


def build(p: Problem, c: Config) -> Kernel:
    """Each half of a wave's K block is decoded while the one before it is multiplied, a commit group each."""
    form = p.form
    assert form is not None
    release, drain = RELEASES[c.in_flight]
    pieces = [_piece(p, c, form, w, half) for w in range(c.waves) for half in range(HALVES)]
    # The group that is left in flight is the last of the stage before, until a first piece has waited.
    at = 0 if c.in_flight else len(pieces) - 1
    pieces[at] = replace(pieces[at], release=(release,))
    tile = TileBody(
        main=(ForK(body=(Wait(barrier="full"), *pieces), unroll=c.unroll),),
        drain=drain,
        epilogue=epilogue(p, c),
    )
    locals = (*accumulators(p, c), *held(form))
    return assemble(p, c, locals=locals, tile=tile, b=blocks_of_b(p, c, form))


def _piece(p: Problem, c: Config, form: Form, wave: int, half: int) -> Piece:
    """The first half of a K block is the first to add to the tile's sum."""
    piece = decoded(p, c, form, wave, half, dst=f"acc{wave}", fresh="never" if half else "tile")
    return replace(piece, wait=(WgmmaWait(pending=c.in_flight),))


def held(form: Form) -> tuple[Registers, ...]:
    """A thread's codes of a K block, their records, and the numbers of its halves."""
    count = REGISTERS * form.steps // HALVES
    records = Registers(name=RECORDS, dtype=S32, count=form.pair_bytes // 4)
    return (
        Registers(name=CODES, dtype=S32, count=form.words),
        *(records,) * (BESIDE[form.by] == "records"),
        *(Registers(name=name, dtype=S32, count=count) for name in NUMBERS),
    )


def decoded(
    p: Problem, c: Config, form: Form, wave: int, half: int, *, dst: str, fresh: Fresh
) -> Piece:
    """Half of a wave's K block into `dst`, which nothing waits for. Codes are read with the first half."""
    beside = BESIDE[form.by]
    of: dict[str, Any] = {"records": RECORDS} if beside == "records" else {}
    to_scales = {"records": row_scales(wave).name} if beside == "scales" else of
    read = ReadCodes(dst=CODES, beside=beside, smem="smem_b", wave=wave, form=form, **to_scales)
    to, by = NUMBERS[half], form.by
    decode = Decode(dst=to, codes=CODES, half=half, form=form, by=by, **of)
    product = MmaDecoded(
        dst=dst,
        a="smem_a",
        b="smem_b",
        instr=wgmma(p, c),
        wave=wave,
        fresh=fresh,
        decoded=NUMBERS[half],
        half=half,
    )
    loads: tuple[Stmt, ...] = (decode,) if half else (read, decode)
    return Piece(loads=loads, products=(Fence(of="wgmma"), product, WgmmaCommit()))
