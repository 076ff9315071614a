"""What every family shares of D: its tensor map, its tile, its parameters and the epilogue."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config
from ..ir import argument_names
from ..ir.argument_names import parameter, row_stride
from ..ir.dtypes import F32
from ..ir.expr import Argument, PerColumn, PerElement, RowBound, Scalar, arguments, fold
from ..ir.groupings import GROUPINGS
from ..ir.nodes import (
    Evaluate,
    Fence,
    If,
    Normalise,
    Param,
    Registers,
    RowAmax,
    Smem,
    StageTile,
    Stmt,
    StoreCommit,
    StoreScales,
    StoreTail,
    StoreTile,
    StoreWait,
    Sync,
    TmaMap,
    Zero,
)
from ..ir.row_sums import ROOM, fold_rows, split_rows
from ..ir.squares import SQUARES
from ..ir.stores import OUTPUT_SCALE_BLOCK
from ..problem import Problem

EPILOGUE_BARRIER = 1  # named barrier 0 is __syncthreads


def output_map(p: Problem) -> TmaMap:
    return TmaMap(
        name="map_d",
        tensor="d",
        inner="n",
        outer="m",
        smem="smem_d",
        clip=16 // p.d.bytes,
        grouped=p.grouped.outputs,
        heads=p.gaps,
    )


def output_tile(p: Problem, c: Config) -> Smem:
    """64 rows of D per consumer warpgroup and wave."""
    return Smem(
        name="smem_d",
        dtype=p.d,
        rows=64,
        cols=c.block_n // fold(p.epilogue),
        stages=c.sharing * c.waves,
        use="output",
        swizzle=c.swizzle_d,
        copies=c.turns,
    )


def output_params(p: Problem) -> tuple[Param, ...]:
    pointer = Param(name="d", ctype=f"{p.d.cuda}*")
    stride = Param(name="d_stride", ctype="int")
    grouped = p.grouped.outputs
    scales = (
        Param(name="scale_d", ctype="float*"),
        Param(name="scale_d_stride", ctype="int"),
        *group_stride("scale_d", grouped=grouped),
    )
    squares = (
        Param(name=SQUARES, ctype="float*"),
        Param(name=f"{SQUARES}_stride", ctype="int"),
        *group_stride(SQUARES, grouped=grouped),
    )
    room = Param(name=ROOM, ctype="int")
    more = (*scales * p.quantised, *squares * p.squares, *(room,) * p.compact)
    return (pointer, stride, *group_stride("d", grouped=grouped), *more)


def group_stride(tensor: str, *, grouped: bool) -> tuple[Param, ...]:
    """The parameter that carries the elements between two groups of `tensor`, if it has groups."""
    return (Param(name=f"{tensor}_stride_g", ctype="long long"),) * grouped


def output_locals(p: Problem, c: Config) -> tuple[Registers, ...]:
    """What a thread holds of D before it is staged, where that is not what the accumulator holds."""
    columns = c.block_n // fold(p.epilogue)
    values = Registers(name="values", dtype=F32, count=columns // 2, transient=True)
    amax = Registers(name="amax", dtype=F32, count=2 * columns // OUTPUT_SCALE_BLOCK)
    rows = fold_rows(p.epilogue)
    # Of each row of D two sums, of columns c and c + 8, of which a quad's lanes have every fourth.
    sums = Registers(
        name="sums", dtype=F32, count=(c.block_m // rows + 1) // 2 or 1, transient=True
    )
    return (values,) * _evaluated(p) + (amax,) * p.quantised + (sums,) * (rows > 1)


def _evaluated(p: Problem) -> bool:
    """Whether D is held as FP32 values before it is staged."""
    return p.quantised or fold(p.epilogue) > 1


def epilogue(p: Problem, c: Config) -> tuple[Stmt, ...]:
    """Registers -> swizzled D tile -> TMA store, drained only before the next tile's first write."""
    sync = Sync(of="warpgroup", first_id=EPILOGUE_BARRIER, warpgroups=c.consumers)
    staged = tuple(s for w in range(c.waves) for s in _staged(p, w))
    waves, add = range(c.waves), p.accumulate
    tail = StoreTail(tensor="d", smem="smem_d", wave=0, add=add)
    tail = replace(tail, tensor=SQUARES, own=True) if p.squares else tail
    tails = tuple(replace(tail, wave=w) for w in waves)
    stores = tuple(StoreTile(tensor_map="map_d", smem="smem_d", wave=w, add=add) for w in waves)
    return (
        If(when="leader", body=(StoreWait(pending=0, reads=True),)),
        sync,
        *staged,
        Fence(of="async"),
        sync,
        If(when="leader", body=(*stores, StoreCommit())),
        *tails,
    )


def _staged(p: Problem, w: int) -> tuple[Stmt, ...]:
    """From the accumulator of wave `w` to its tile."""
    value = GROUPINGS[p.grouping].value(p.epilogue)
    if fold_rows(value) > 1:
        inner, outer = split_rows(value)
        sums = Evaluate(dst="sums", src=f"acc{w}", wave=w, value=inner, of="sums")
        return sums, StageTile(src="sums", smem="smem_d", wave=w, value=outer)
    if not _evaluated(p):
        return (StageTile(src=f"acc{w}", smem="smem_d", wave=w, value=value),)
    evaluate = Evaluate(dst="values", src=f"acc{w}", wave=w, value=value)
    scales: tuple[Stmt, ...] = (
        RowAmax(dst="amax", src="values"),
        StoreScales(src="amax", tensor="scale_d", wave=w),
        Normalise(dst="values", amax="amax"),
    )
    stage = StageTile(src="values", smem="smem_d", wave=w)
    # What wgmma may add to is live until the next tile: cleared, its registers are free for values.
    return evaluate, *scales * p.quantised, stage, Zero(dst=f"acc{w}")


def epilogue_params(p: Problem) -> tuple[Param, ...]:
    grouped = p.grouped.outputs
    found = arguments(p.epilogue)
    params = (_argument_params(x, grouped=grouped, paged=bool(p.paged)) for x in found)
    return tuple(param for of_argument in params for param in of_argument)


def _argument_params(argument: Argument, *, grouped: bool, paged: bool) -> tuple[Param, ...]:
    name = parameter(argument.name)
    between = Param(name=argument_names.group_stride(argument.name), ctype="long long")
    match argument:
        case Scalar():
            return (Param(name=name, ctype="float"),)
        case RowBound():
            return (Param(name=name, ctype="const int*"),)
        case PerElement(_, dtype):
            stride = Param(name=row_stride(argument.name), ctype="int")
            pointer = Param(name=name, ctype=f"const {dtype.cuda}*")
            return (pointer, stride, *(between,) * grouped)
        case PerColumn() if paged:
            return (Param(name=name, ctype="const float*"), between)
    return (Param(name=name, ctype="const float*"),)
