"""What every family shares of D: its tensor map, its tile, its parameters and the epilogue."""

from __future__ import annotations

from ..config import Config
from ..ir.expr import Argument, PerElement, Scalar, arguments, parameter, row_stride
from ..ir.groupings import GROUPINGS
from ..ir.nodes import (
    Param,
    ProxyFence,
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
        grouped=GROUPINGS[p.grouping].outputs,
    )


def output_tile(p: Problem, c: Config) -> Smem:
    """64 rows of D per consumer warpgroup and wave."""
    return Smem(
        name="smem_d",
        dtype=p.d,
        rows=64,
        cols=c.block_n,
        stages=c.consumers * c.waves,
        use="output",
        swizzle=c.swizzle_d,
    )


def output_params(p: Problem) -> tuple[Param, ...]:
    pointer = Param(name="d", ctype=f"{p.d.cuda}*")
    stride = Param(name="d_stride", ctype="int")
    return (pointer, stride, *group_stride("d", grouped=GROUPINGS[p.grouping].outputs))


def group_stride(tensor: str, *, grouped: bool) -> tuple[Param, ...]:
    """The parameter that carries the elements between two groups of `tensor`, if it has groups."""
    return (Param(name=f"{tensor}_stride_g", ctype="long long"),) * grouped


def epilogue(p: Problem, c: Config) -> tuple[Stmt, ...]:
    """Registers -> swizzled D tile -> TMA store, drained only before the next tile's first write."""
    sync = WarpgroupSync(first_id=EPILOGUE_BARRIER, warpgroups=c.consumers)
    staged = tuple(
        StageTile(
            src=f"acc{w}", smem="smem_d", wave=w, value=GROUPINGS[p.grouping].value(p.epilogue)
        )
        for w in range(c.waves)
    )
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


def epilogue_params(p: Problem) -> tuple[Param, ...]:
    grouped = GROUPINGS[p.grouping].outputs
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
