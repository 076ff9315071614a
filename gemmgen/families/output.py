"""What every family shares of D: its tensor map, its tile, its parameters and the epilogue."""

from __future__ import annotations

from ..config import Config
from ..ir.dtypes import F32
from ..ir.expr import Argument, PerElement, Scalar, arguments, fold, parameter, row_stride
from ..ir.groupings import GROUPINGS
from ..ir.nodes import (
    Evaluate,
    Param,
    ProxyFence,
    Registers,
    Smem,
    StageTile,
    Stmt,
    StoreCommit,
    StoreTail,
    StoreTile,
    StoreWait,
    TmaMap,
    WarpgroupLeader,
    WarpgroupSync,
)
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
        grouped=GROUPINGS[p.grouping].rows,
    )


def output_tile(p: Problem, c: Config) -> Smem:
    """64 rows of D per consumer warpgroup and wave."""
    return Smem(
        name="smem_d",
        dtype=p.d,
        rows=64,
        cols=c.block_n // fold(p.epilogue),
        stages=c.consumers * c.waves,
        use="output",
        swizzle=c.swizzle_d,
    )


def output_params(p: Problem) -> tuple[Param, ...]:
    pointer = Param(name="d", ctype=f"{p.d.cuda}*")
    stride = Param(name="d_stride", ctype="int")
    return (pointer, stride, *group_stride("d", grouped=GROUPINGS[p.grouping].rows))


def group_stride(tensor: str, *, grouped: bool) -> tuple[Param, ...]:
    """The parameter that carries the elements between two groups of `tensor`, if it has groups."""
    return (Param(name=f"{tensor}_stride_g", ctype="long long"),) * grouped


def output_locals(p: Problem, c: Config) -> tuple[Registers, ...]:
    """What a thread holds of D before it is staged, where D's columns are not the accumulator's."""
    columns = fold(p.epilogue)
    count = c.block_n // 2 // columns
    return (Registers(name="values", dtype=F32, count=count, transient=True),) * (columns > 1)


def epilogue(p: Problem, c: Config) -> tuple[Stmt, ...]:
    """Registers -> swizzled D tile -> TMA store, drained only before the next tile's first write."""
    sync = WarpgroupSync(first_id=EPILOGUE_BARRIER, warpgroups=c.consumers)
    staged = tuple(s for w in range(c.waves) for s in _staged(p, w))
    waves, add = range(c.waves), p.accumulate
    tails = tuple(StoreTail(tensor="d", smem="smem_d", wave=w, add=add) for w in waves)
    stores = tuple(StoreTile(tensor_map="map_d", smem="smem_d", wave=w, add=add) for w in waves)
    return (
        WarpgroupLeader(body=(StoreWait(pending=0, reads=True),)),
        sync,
        *staged,
        ProxyFence(),
        sync,
        WarpgroupLeader(body=(*stores, StoreCommit())),
        *tails,
    )


def _staged(p: Problem, w: int) -> tuple[Stmt, ...]:
    """From the accumulator of wave `w` to its tile."""
    value = GROUPINGS[p.grouping].value(p.epilogue)
    if fold(p.epilogue) == 1:
        return (StageTile(src=f"acc{w}", smem="smem_d", wave=w, value=value),)
    evaluate = Evaluate(dst="values", src=f"acc{w}", wave=w, value=value)
    return evaluate, StageTile(src="values", smem="smem_d", wave=w)


def epilogue_params(p: Problem) -> tuple[Param, ...]:
    grouped = GROUPINGS[p.grouping].rows
    found = arguments(p.epilogue)
    return tuple(param for x in found for param in _argument_params(x, grouped=grouped))


def _argument_params(argument: Argument, *, grouped: bool) -> tuple[Param, ...]:
    name = parameter(argument.name)
    match argument:
        case Scalar():
            return (Param(name=name, ctype="float"),)
        case PerElement(_, dtype):
            stride = Param(name=row_stride(argument.name), ctype="int")
            pointer = Param(name=name, ctype=f"const {dtype.cuda}*")
            return (pointer, stride, *group_stride(name, grouped=grouped))
    return (Param(name=name, ctype="const float*"),)
