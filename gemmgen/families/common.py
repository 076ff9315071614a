"""The frame every family shares: operands, ring, producer, epilogue; a family fills in the K loop."""

from __future__ import annotations

from ..config import Config
from ..epilogues import label_of
from ..ir.dtypes import F32, S32, DType
from ..ir.expr import Argument, Expr, PerElement, Scalar, arguments, parameter, row_stride
from ..ir.nodes import (
    Barrier,
    Block,
    Cluster,
    Coord,
    CtaLeader,
    CtaSync,
    ExpectTx,
    FenceBarrierInit,
    ForK,
    ForTiles,
    InitBarrier,
    Kernel,
    Param,
    PrefetchMap,
    ProxyFence,
    Registers,
    Role,
    Smem,
    StageTile,
    Stmt,
    StoreCommit,
    StoreTail,
    StoreTile,
    StoreWait,
    TmaLoad,
    TmaMap,
    Wait,
    WarpgroupLeader,
    WarpgroupSync,
    Wgmma,
)
from ..problem import Problem
from ..schedulers import panels

SHAPE = (
    Param(name="shape_m", ctype="int"),
    Param(name="shape_n", ctype="int"),
    Param(name="shape_k", ctype="int"),
)
EPILOGUE_BARRIER = 1  # named barrier 0 is __syncthreads


def kernel_name(p: Problem, c: Config) -> str:
    """A C identifier that names everything the emitted code depends on."""
    tile = f"{c.block_m}x{c.block_n}x{c.block_k_bytes // p.a.bytes}"
    parts = [
        f"gemmgen_{p.family}_gemm",
        p.a.name,
        p.b.name,
        p.d.name,
        tile,
        f"s{c.stages}c{c.consumers}",
    ]
    optional = {
        f"mc{c.multicast}": c.multicast != "none",
        f"{c.raster}{c.panel}": (c.raster, c.panel) != ("m", 8),
        f"u{c.unroll}": c.unroll != 1,
        f"w{c.in_flight}": c.in_flight != 0,
        f"sab{c.swizzle_ab}": c.swizzle_ab is not None,
        f"sd{c.swizzle_d}": c.swizzle_d is not None,
        "r" + "_".join(map(str, c.registers or ())): c.registers is not None,
        "watched": c.watchdog,
        label_of(p.epilogue): p.epilogue != Problem.epilogue,
    }
    return "_".join(parts + [text for text, present in optional.items() if present])


def block(p: Problem, c: Config) -> Block:
    return Block(m=c.block_m, n=c.block_n, k=c.block_k_bytes // p.a.bytes)


def wgmma(p: Problem, c: Config) -> Wgmma:
    return Wgmma(n=c.block_n, a=p.a, b=p.b, d=S32 if p.a.integer else F32)


def accumulators(p: Problem, c: Config) -> tuple[Registers, ...]:
    """One accumulator per wave, FP32 (S32 for integers): `acc0`, `acc1`."""
    w = wgmma(p, c)
    return tuple(Registers(name=f"acc{i}", dtype=w.d, count=w.num_regs) for i in range(c.waves))


def operand(name: str, dtype: DType, rows: int, p: Problem, c: Config) -> Smem:
    cols = c.block_k_bytes // p.a.bytes
    return Smem(
        name=name,
        dtype=dtype,
        rows=rows,
        cols=cols,
        stages=c.stages,
        use="operand",
        swizzle=c.swizzle_ab,
    )


def load(tensor: str, inner: Coord, outer: Coord) -> TmaLoad:
    return TmaLoad(
        tensor_map=f"map_{tensor}", smem=f"smem_{tensor}", barrier="full", coords=(inner, outer)
    )


def epilogue(p: Problem, c: Config) -> tuple[Stmt, ...]:
    """Registers -> swizzled D tile -> TMA store, drained only before the next tile's first write."""
    sync = WarpgroupSync(first_id=EPILOGUE_BARRIER, warpgroups=c.consumers)
    staged = tuple(
        StageTile(src=f"acc{w}", smem="smem_d", wave=w, value=p.epilogue) for w in range(c.waves)
    )
    tails = tuple(StoreTail(tensor="d", smem="smem_d", wave=w) for w in range(c.waves))
    stores = tuple(StoreTile(tensor_map="map_d", smem="smem_d", wave=w) for w in range(c.waves))
    return (
        WarpgroupLeader(body=(StoreWait(pending=0, reads=True),)),
        sync,
        *staged,
        ProxyFence(),
        sync,
        WarpgroupLeader(body=(*stores, StoreCommit())),
        *tails,
    )


def epilogue_params(e: Expr) -> tuple[Param, ...]:
    return tuple(param for x in arguments(e) for param in _argument_params(x))


def _argument_params(argument: Argument) -> tuple[Param, ...]:
    name = parameter(argument.name)
    match argument:
        case Scalar():
            return (Param(name=name, ctype="float"),)
        case PerElement(_, dtype):
            stride = Param(name=row_stride(argument.name), ctype="int")
            return (Param(name=name, ctype=f"const {dtype.cuda}*"), stride)
    return (Param(name=name, ctype="const float*"),)


def prologue(maps: tuple[TmaMap, ...], barriers: tuple[Barrier, ...]) -> tuple[Stmt, ...]:
    fetch = tuple(PrefetchMap(tensor_map=m.name) for m in maps)
    init = tuple(InitBarrier(barrier=b.name) for b in barriers)
    return (CtaLeader(body=(*fetch, *init, FenceBarrierInit())), CtaSync())


def producer(c: Config, loads: tuple[Stmt, ...]) -> Role:
    step = (Wait(barrier="empty", flip=1), ExpectTx(barrier="full"), *loads)
    return Role(
        name="producer",
        warpgroups=(c.consumers, c.consumers + 1),
        locals=(),
        body=(WarpgroupLeader(body=(ForTiles(body=(ForK(body=step),)),)),),
        registers=c.registers[0] if c.registers else None,
    )


def consumer(c: Config, locals: tuple[Registers, ...], tile: tuple[Stmt, ...]) -> Role:
    return Role(
        name="consumer",
        warpgroups=(0, c.consumers),
        locals=locals,
        body=(ForTiles(body=tile), WarpgroupLeader(body=(StoreWait(pending=0, reads=False),))),
        registers=c.registers[1] if c.registers else None,
    )


def assemble(
    p: Problem,
    c: Config,
    *,
    locals: tuple[Registers, ...],
    tile: tuple[Stmt, ...],
    maps: tuple[TmaMap, ...] = (),
    smem: tuple[Smem, ...] = (),
    loads: tuple[Stmt, ...] = (),
    params: tuple[Param, ...] = (),
) -> Kernel:
    """Frame a family's tile body, and what it adds to A and B, into a persistent warp-specialised kernel."""
    b = block(p, c)
    k = Coord(base="k", scale=b.k)
    maps = (
        TmaMap(name="map_a", tensor="a", inner="k", outer="m", smem="smem_a"),
        TmaMap(name="map_b", tensor="b", inner="k", outer="n", smem="smem_b"),
        *maps,
        TmaMap(name="map_d", tensor="d", inner="n", outer="m", smem="smem_d", clip=16 // p.d.bytes),
    )
    barriers = (Barrier(name="full", stages=c.stages), Barrier(name="empty", stages=c.stages))
    d_tile = Smem(
        name="smem_d",
        dtype=p.d,
        rows=64,
        cols=b.n,
        stages=c.consumers * c.waves,
        use="output",
        swizzle=c.swizzle_d,
    )
    output = (Param(name="d", ctype=f"{p.d.cuda}*"), Param(name="d_stride", ctype="int"))
    shared = None if c.multicast == "none" else c.multicast
    return Kernel(
        name=kernel_name(p, c),
        block=b,
        cluster=Cluster(size=c.cluster_size, shared=shared),  # type: ignore[arg-type]
        scheduler=panels(c.raster, c.panel),
        maps=maps,
        params=(*SHAPE, *output, *params, *epilogue_params(p.epilogue)),
        smem=(
            operand("smem_a", p.a, b.m, p, c),
            operand("smem_b", p.b, b.n, p, c),
            *smem,
            d_tile,
        ),
        barriers=barriers,
        watchdog=c.watchdog,
        instr=wgmma(p, c),
        prologue=prologue(maps, barriers),
        roles=(
            consumer(c, locals, tile),
            producer(
                c,
                (
                    load("a", k, Coord(base="tile.a_row")),
                    *loads,
                    load("b", k, Coord(base="tile.b_row")),
                ),
            ),
        ),
    )
