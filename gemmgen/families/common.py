"""The frame every family shares: operands, ring, producer, epilogue; a family fills in the K loop."""

from __future__ import annotations

from ..config import Config
from ..ir.argument_names import parameter
from ..ir.collectives import COLLECTIVES
from ..ir.dtypes import F32, S32, DType
from ..ir.expr import fold
from ..ir.groupings import GROUPINGS
from ..ir.indices import PARAMS as INDICES
from ..ir.nodes import (
    Arrive,
    Barrier,
    Block,
    Cluster,
    Coord,
    ExpectTx,
    Fence,
    ForK,
    ForTiles,
    Groups,
    If,
    InitBarrier,
    Kernel,
    Mma,
    Param,
    Peers,
    Piece,
    PrefetchMap,
    Registers,
    Role,
    Scheduler,
    Smem,
    Stmt,
    StoreWait,
    Sync,
    TileBody,
    TmaMap,
    Wait,
    Wgmma,
    WgmmaCommit,
    WgmmaWait,
)
from ..ir.pages import PARAMS as PAGE_PARAMS
from ..ir.row_sums import fold_rows, windows
from ..problem import Problem
from ..schedulers import RUNS, panels
from .naming import kernel_name
from .operands import Operand, boxes_of_a, boxes_of_b, majors
from .output import epilogue_params, output_locals, output_map, output_params, output_tile

SHAPE = (
    Param(name="shape_m", ctype="int"),
    Param(name="shape_n", ctype="int"),
    Param(name="shape_k", ctype="int"),
)


def block(p: Problem, c: Config) -> Block:
    k = c.block_k_bytes // p.a.bytes
    columns, rows = fold(p.epilogue), fold_rows(p.epilogue)
    return Block(m=c.block_m, n=c.block_n, k=k, fold=columns, fold_rows=rows)


def wgmma(p: Problem, c: Config) -> Wgmma:
    a, b = majors(p)
    d = S32 if p.a.integer else F32
    return Wgmma(n=c.wgmma_n // c.parts, a=p.a, b=p.b, d=d, a_major=a, b_major=b)


def accumulators(p: Problem, c: Config, dtype: DType | None = None) -> tuple[Registers, ...]:
    """One accumulator per wave, of what wgmma sums in unless `dtype` is given: `acc0`, `acc1`. The parts'
    registers follow each other in it."""
    w = wgmma(p, c)
    count, dtype = w.num_regs * c.parts, dtype or w.d
    return tuple(Registers(name=f"acc{i}", dtype=dtype, count=count) for i in range(c.waves))


def partial(p: Problem, c: Config) -> Registers:
    """What wgmma sums one part of a K block in, before it is promoted: `part`."""
    w = wgmma(p, c)
    return Registers(name="part", dtype=w.d, count=w.num_regs)


def row_scales(wave: int) -> Registers:
    """Of a wave's sums, those of a thread's two rows."""
    return Registers(name=f"row_scales{wave}", dtype=F32, count=2)


def multiply(p: Problem, c: Config, wave: int, part: int) -> Mma:
    """One part of a wave's K block into `part`."""
    return Mma(
        dst="part",
        a="smem_a",
        b="smem_b",
        instr=wgmma(p, c),
        wave=wave,
        part=part,
        fresh="block",
    )


def pieces(c: Config) -> tuple[tuple[int, int, bool], ...]:
    """What a K block is promoted in: wave, part and whether it is the last, in order."""
    pairs = [(wave, part) for wave in range(c.waves) for part in range(c.parts)]
    return tuple((wave, part, (wave, part) == pairs[-1]) for wave, part in pairs)


def promoted(
    p: Problem,
    c: Config,
    wave: int,
    part: int,
    last: bool,
    *,
    by: Stmt,
    loads: tuple[Stmt, ...] = (),
) -> Piece:
    """One of `pieces`, whose sum in `part` is promoted `by` a statement. The last MMAs are the stage's last readers: it is
    released before that."""
    return Piece(
        loads=loads,
        products=(Fence(of="wgmma"), multiply(p, c, wave, part), WgmmaCommit()),
        wait=(WgmmaWait(pending=c.in_flight),),
        release=(Arrive(barrier="empty"),) * last,
        promote=(by,),
    )


def prologue(maps: tuple[TmaMap, ...], barriers: tuple[Barrier, ...]) -> tuple[Stmt, ...]:
    fetch = tuple(PrefetchMap(tensor_map=m.name) for m in maps)
    init = tuple(InitBarrier(barrier=b.name) for b in barriers)
    return (If(when="cta_leader", body=(*fetch, *init, Fence(of="barriers"))), Sync(of="cta"))


def producer(c: Config, loads: tuple[Stmt, ...]) -> Role:
    step = (Wait(barrier="empty", flip=1), ExpectTx(barrier="full"), *loads)
    return Role(
        name="producer",
        warpgroups=(c.consumers, c.consumers + 1),
        locals=(),
        body=(If(when="leader", body=(ForTiles(body=(TileBody(main=(ForK(body=step),)),)),)),),
        registers=c.registers[0] if c.registers else None,
    )


def consumer(c: Config, locals: tuple[Registers, ...], tile: TileBody) -> Role:
    return Role(
        name="consumer",
        warpgroups=(0, c.consumers),
        locals=locals,
        body=(ForTiles(body=(tile,)), If(when="leader", body=(StoreWait(pending=0, reads=False),))),
        registers=c.registers[1] if c.registers else None,
        turns=c.turns,
        slices=c.slices,
    )


def multicasting(c: Config) -> Cluster:
    shared = None if c.multicast == "none" else c.multicast
    return Cluster(size=2 if shared else 1, shared=shared)  # type: ignore[arg-type]


def walk(p: Problem, c: Config, rows: int) -> Scheduler:
    """rows: of a cluster's tiles."""
    g, together = GROUPINGS[p.grouping], COLLECTIVES[p.collective]
    bounds = tuple(parameter(x.name) for x in windows(p.epilogue))
    return panels(c.raster, c.panel, g, p.alignment, c.order, rows, together, bounds)


def parameters(p: Problem, params: tuple[Param, ...]) -> tuple[Param, ...]:
    """All of a kernel's. params: its family's."""
    walked = (*GROUPINGS[p.grouping].params, *COLLECTIVES[p.collective].params)
    walked += INDICES * p.indexed + PAGE_PARAMS * bool(p.paged)
    return (*SHAPE, *walked, *output_params(p), *params, *epilogue_params(p))


def groups(p: Problem, *, ragged: bool) -> Groups:
    g = p.grouped
    return Groups(
        rows=g.rows and not g.summed,
        columns=g.columns and not g.summed,
        ragged=g.ragged or ragged,
        depths=g.depths,
        step=p.alignment * g.again,
        pages=p.paged,
        summed=g.summed,
    )


def ready(p: Problem, tensors: tuple[str, ...]) -> tuple[str, ...]:
    """Of tensors that the producer loads, what no launch that may still run writes."""
    return tuple(x for x in tensors if x in ("b", "scale_b") and p.weights_ready)


def assemble(
    p: Problem,
    c: Config,
    *,
    locals: tuple[Registers, ...],
    tile: TileBody,
    maps: tuple[TmaMap, ...] = (),
    smem: tuple[Smem, ...] = (),
    loads: tuple[Stmt, ...] = (),
    params: tuple[Param, ...] = (),
    b: Operand | None = None,
) -> Kernel:
    """Frame a family's tile body, and what it adds to A and B, into a persistent warp-specialised kernel. b: how B comes, if not in boxes."""
    tile_block, sharing = block(p, c), multicasting(c)
    k = Coord(base="k", scale=tile_block.k)
    of_a, of_b = boxes_of_a(p, c, k), b or boxes_of_b(p, c, k)
    maps = (*of_a.maps, *of_b.maps, *maps, output_map(p))
    barriers = (Barrier(name="full", stages=c.stages), Barrier(name="empty", stages=c.stages))
    scheduler = walk(p, c, tile_block.m * sharing.m)
    return Kernel(
        name=kernel_name(p, c),
        block=tile_block,
        cluster=sharing,
        scheduler=scheduler,
        groups=groups(p, ragged=scheduler.name == RUNS),
        ready=ready(p, (*(m.tensor for m in maps), *(x.tensor for x in of_b.pointed))),
        peers=Peers(wire=p.wire),
        maps=maps,
        params=parameters(p, (*of_b.params, *params)),
        smem=(of_a.smem, of_b.smem, *smem, output_tile(p, c)),
        barriers=barriers,
        instr=wgmma(p, c),
        prologue=prologue(maps, barriers),
        roles=(
            consumer(c, (*locals, *output_locals(p, c)), tile),
            producer(c, (of_a.load, *loads, of_b.load)),
        ),
        pointed=of_b.pointed,
    )
