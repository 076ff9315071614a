"""What a config costs on a shape: arithmetic over one tile and its waves, nothing lowered."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from .config import Config
from .cost_direct import direct
from .cost_edge import at_edge
from .cost_fit import FIT
from .cost_launch import Workload, ceil, cluster_of, launch
from .cost_launch import count_tiles as count_tiles
from .cost_launch import dram_bytes as dram_bytes
from .cost_launch import floors as floors
from .cost_launch import flops as flops
from .cost_launch import operand_bytes as operand_bytes
from .cost_ranks import with_ranks
from .cost_rates import LINE, hbm_rate, l2_rate, seconds_of_adding
from .cost_terms import Cost as Cost
from .cost_terms import Terms, Wave, Work
from .ir import dealing
from .ir.indices import SPAN
from .ir.nodes import Cluster
from .levers import LEVERS, Price
from .levers.stream import handed_cycles
from .passes.count_registers import LANE_COLUMNS
from .passes.split_scales import blocks_touched, copied
from .problem import Problem, Shape
from .recipes import recipe
from .target import Target

# Of `Work`, by steps.
STREAMED = ("tensor", "shared", "promotion", "scales", "chain", "cluster", "decoding", "l2_bytes", "d_bytes")  # fmt: skip
ALONE = Cluster()
WARPS = 4  # of a warpgroup


def cost(p: Problem, c: Config, shape: Shape, target: Target, groups: int = 1) -> Cost:
    """Cost of `groups` times D[M, N] = A[M, K] B[N, K]^T under `c`; of a collective the groups are its ranks, of M rows each. Ignores stages and raster: both are chosen
    for a tile, not between tiles. Raises ArgumentError for a side below 1."""
    of = launch(p, shape, target, groups)
    t = priced(of, c)
    work, busy, wave = t.work, t.full.busy, t.waves / target.clock_hz
    tiles = (t.waves - 1) * _resident(c, target) + t.last.busy
    if c.direct:  # several of them share an SM
        tiles = of.tiles(c)
    return Cost(
        tiles=tiles,
        waves=t.waves,
        last_wave_use=t.last.busy / target.sms,
        l2_bytes=tiles * work.l2_bytes,
        dram_bytes=of.dram_bytes,
        smem_cycles=work.shared,
        seconds=t.seconds,
        tensor=wave * work.tensor,
        l2=wave * work.l2_bytes / l2_rate(busy, target),
        shared=wave * work.shared,
        promotion=wave * work.promotion,
        epilogue=wave * work.epilogue,
        hbm=t.hbm,
        launch=t.launch,
        link=t.link.seconds if t.link else 0.0,
    )


def terms(p: Problem, c: Config, shape: Shape, target: Target, groups: int = 1) -> Terms:
    """What `cost`'s seconds add up from. Raises ArgumentError for a side below 1."""
    return priced(launch(p, shape, target, groups), c)


def priced(of: Workload, c: Config) -> Terms:
    """`terms` of many configs of one launch."""
    return with_ranks(of, c, _alone(of, c))


def _alone(of: Workload, c: Config) -> Terms:
    """Of one GPU."""
    p, target, cluster, price = of.problem, of.target, cluster_of(c), _price(of, c)
    high, wide = of.covering(c.block_m * cluster.m), ceil(of.shape[1], c.block_n * cluster.n)
    clusters = of.grids * high * wide / len(of.rows)
    if c.direct:
        return direct(of, c, _work(of, c, price, ALONE), round(clusters))
    if c.stream:
        return _streamed(of, c, price, round(clusters))
    tiles, resident = round(clusters) * c.cluster_size, _resident(c, target)
    waves = ceil(tiles, resident)
    busy, last = min(tiles, resident), tiles - (waves - 1) * resident
    work, again = _work(of, c, price, cluster), _again(of, c, cluster)
    drawing = of.grids * (_drawing(of, c, price) / len(of.rows))
    full = at_edge(of, c, _wave(work, c, price, busy, target), work.steps, waits=waves == 1)
    adding = of.grids * seconds_of_adding(p, price.row, of.shape)
    rate = hbm_rate(drawing / waves, target)
    return Terms(
        work=work,
        full=_followed(full, c, price),
        last=at_edge(of, c, _wave(work, c, price, last, target), work.steps, waits=waves <= 2),
        waves=waves,
        tail=work.d_bytes / l2_rate(last, target),
        clock_hz=target.clock_hz,
        hbm=max((of.dram_bytes + again) / rate, adding),
        again=again / rate,
        adding=adding,
        overlap=FIT.overlap,
        launch=target.launch_seconds,
    )


def _streamed(of: Workload, c: Config, price: Price, tiles: int) -> Terms:
    """One wave, in which each CTA has an equal stretch of tiles' K blocks."""
    target, whole = of.target, _work(of, c, price, ALONE)
    busy = dealing.ctas(tiles, whole.steps, target.sms)
    steps = ceil(tiles * whole.steps, busy)
    run = {x: getattr(whole, x) * steps / whole.steps for x in STREAMED}
    handed = handed_cycles(c, ceil(busy, tiles)) * (tiles % busy > 0)
    run["epilogue"] = whole.epilogue * ceil(tiles, busy) + handed
    work = replace(whole, steps=steps, **run)
    wave = at_edge(of, c, _wave(work, c, price, busy, target), steps, waits=True)
    adding = of.grids * seconds_of_adding(of.problem, price.row, of.shape)
    return Terms(
        work=work,
        full=wave,
        last=wave,
        waves=1,
        tail=whole.d_bytes / l2_rate(busy, target),
        clock_hz=target.clock_hz,
        hbm=max(of.dram_bytes / hbm_rate(busy, target), adding),
        again=0,
        adding=adding,
        overlap=FIT.overlap,
        launch=target.launch_seconds,
    )


def _price(of: Workload, c: Config) -> Price:
    """A plain config's, but for what levers change."""
    price: dict[str, Any] = {
        "step": _copying(of, c),
        "drain": FIT.drain,
        "dearer": _dearer(of, c),
        "loads": 1,
        "writes": FIT.smem_writes,
        "main": 0,
        "epilogue": FIT.epilogue,
        "pieces": 0,
        "piece": FIT.piece,
        "row": c.block_n,
        "exchange": 0,
        "turn": 0,
        "high": of.covering(c.block_m),
    }
    for lever in LEVERS:
        if lever.price and not lever.plain(c):
            price |= lever.price(price, of, c)
    return Price(**price)


def _copying(of: Workload, c: Config) -> float:
    """Cycles per K block in which threads write A's rows, where those come by index."""
    return of.problem.indexed * FIT.copied_row * c.block_m * c.block_k_bytes / SPAN


def _dearer(of: Workload, c: Config) -> float:
    """How much longer promotion takes than with one scale per row."""
    return FIT.per_column if of.recipe.scales_columns else _straddling(c.block_n)


def _resident(c: Config, target: Target) -> int:
    """CTAs that run at once."""
    return target.clusters(c.cluster_size) * c.cluster_size


def _drawing(of: Workload, c: Config, price: Price) -> int:
    """Tiles that draw from HBM, of all `rows` of a group: not those that complete a cluster."""
    return price.high * ceil(of.shape[1], c.block_n) * c.split_k


def _work(of: Workload, c: Config, price: Price, cluster: Cluster) -> Work:
    (m, n, _), target, waves = of.shape, of.target, c.waves
    a_bytes = of.problem.a.bytes
    steps = ceil(ceil(of.k_bytes, c.block_k_bytes), c.split_k)
    line = c.block_k_bytes / target.smem_bytes_per_clock  # cycles per row of operand
    flops = 2 * target.wgmma_m * c.wgmma_n * c.block_k_bytes / a_bytes  # of 64 rows, per step
    mma = flops / target.flops_per_clock(a_bytes) / FIT.wgmma_rate
    # Both operands come from shared memory, the second again for every 64 rows (the SS form of wgmma).
    reads = (target.wgmma_m * of.packed + c.wgmma_n) * line
    writes = (c.block_m + c.block_n * of.packed) * line * price.writes
    blocks = c.wgmma_m // target.wgmma_m
    promotion, scales = waves * _promotion(of, c, price), _column_scales(of, c, price)
    # What a tile reaches beyond the matrix is zero-filled by TMA and costs no L2 traffic.
    rows, cols = min(c.block_m, m), min(c.block_n, n)
    dear = cols * _narrow(of, c) * of.packed
    loads = of.k_bytes * (rows / cluster.n + dear / cluster.m) / c.split_k
    d_bytes = rows * cols * of.d_bytes / c.split_k
    own = ceil(steps, c.slices)  # K blocks of a warpgroup
    decoding = _decoding(of, c)
    return Work(
        steps=steps,
        tensor=steps * blocks * mma,
        shared=steps * (blocks * reads + writes + scales),
        promotion=steps * promotion,
        scales=steps * scales,
        chain=own * (waves * max(mma, reads, decoding) + promotion + scales),
        cluster=steps * (_lockstep(of) * bool(cluster.shared) + price.step),
        epilogue=price.epilogue + _staging(of, c, price),
        l2_bytes=loads + d_bytes + (4 * rows * steps if of.promotes else 0),
        d_bytes=d_bytes,
        decoding=own * waves * decoding,
        exchange=price.exchange,
    )


def _decoding(of: Workload, c: Config) -> float:
    """Cycles per wave and K block in which a warpgroup makes numbers of codes, one half while the other is multiplied, and others take of the issue slots."""
    cycles = FIT.decoding_bytes if of.problem.a.bits == 8 else FIT.decoding
    return bool(of.recipe.coded) * cycles * (1 + FIT.decoding_beside * (c.sharing * c.slices - 1))


def _narrow(of: Workload, c: Config) -> float:
    """How much longer columns of B take to load than whole lines of K."""
    p = of.problem
    return FIT.narrow if p.mn_major[1] and c.block_n * p.b.bytes % LINE else 1


def _promotion(of: Workload, c: Config, price: Price) -> float:
    """Cycles per wave and K block between the end of one wgmma group and the start of the next."""
    if not of.promotes:
        return price.drain
    return c.wgmma_n / 2 * FIT.ffma * price.dearer + price.drain


def _column_scales(of: Workload, c: Config, price: Price) -> float:
    """Cycles per K block that shared memory takes to give each consumer warp a register per 4 columns."""
    if not (of.recipe.scales_columns or (of.recipe.scaled and of.recipe.coded)):
        return 0
    return WARPS * c.sharing * price.loads * c.wgmma_n / LANE_COLUMNS * FIT.column_load


def _lockstep(of: Workload) -> float:
    return FIT.cluster + FIT.cluster_of_columns * of.recipe.scales_columns


def _staging(of: Workload, c: Config, price: Price) -> float:
    """Cycles to write D's tile into shared memory, and first to bring the sums of CTAs that divide K together."""
    written = c.block_m * c.block_n * of.d_bytes / FIT.staging
    written += c.block_m * c.block_n * of.read_bytes / (c.sharing * FIT.reading)
    piece = price.piece + FIT.reading_piece * (of.read_bytes > 0)
    return written + price.pieces * piece + price.exchange


def _wave(w: Work, c: Config, price: Price, busy: int, target: Target) -> Wave:
    """One wave of `busy` SMs. Several consumers promote under each other's MMAs, one cannot."""
    l2 = w.l2_bytes / l2_rate(busy, target)
    shown = (0, *FIT.promotion_exposed)
    exposed = shown[min(c.sharing, len(shown)) - 1]
    each = (w.tensor, w.shared, l2)
    # Promotion keeps them apart: fitted without.
    norm = 0.0 if w.promotion else sum(x**FIT.resources for x in each) ** (1 / FIT.resources)
    return Wave(
        busy=busy,
        tensor=w.tensor,
        shared=w.shared,
        l2=l2,
        chain=w.chain,
        l2_exposed=FIT.l2_exposed * l2 + price.main * max(each) + max(0.0, norm - max(each)),
        zeros=0,
        cluster=w.cluster,
        epilogue=w.epilogue,
        promotion=exposed * w.promotion,
    )


def _followed(wave: Wave, c: Config, price: Price) -> Wave:
    """A wave after which another comes. Where warpgroups take tiles in turns, that one is multiplied meanwhile:
    of the epilogue shows what is longer than the others' main loops."""
    if c.turns == 1:
        return wave
    shown = max(0.0, wave.epilogue - (c.turns - 1) * wave.main) / c.turns
    return replace(wave, epilogue=price.turn + shown)


def _again(of: Workload, c: Config, cluster: Cluster) -> float:
    """Bytes of B that HBM gives once more, since several clusters along M ask for them at once."""
    asking = of.covering(c.block_m * cluster.m) / len(of.rows)
    return FIT.hbm_again * of.b_bytes * max(0.0, 1 - 1 / asking)


def selects(p: Problem, block_n: int) -> bool:
    """Whether promotion picks one of two block scales column by column."""
    return recipe(p.family).scales_blocks and _straddling(block_n) == FIT.select


@cache
def _straddling(block_n: int) -> float:
    """How much longer promotion takes where a tile can touch two scale blocks."""
    if blocks_touched(block_n) == 1:
        return 1.0
    return FIT.copies if copied(block_n) else FIT.select
