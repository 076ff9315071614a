"""What a config costs on a shape: arithmetic over one tile and its waves, nothing lowered."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from .config import Config
from .cost_fit import FIT
from .cost_launch import Launch, ceil, launch
from .cost_launch import dram_bytes as dram_bytes
from .cost_launch import floors as floors
from .cost_launch import flops as flops
from .cost_launch import operand_bytes as operand_bytes
from .cost_terms import Cost as Cost
from .cost_terms import Terms, Wave, Work
from .ir.nodes import Cluster
from .levers import MORE
from .passes.count_registers import LANE_COLUMNS
from .passes.split_scales import blocks_touched, copied
from .problem import Problem, Shape
from .recipes import recipe
from .target import Target

LINE = 128  # bytes, of L2
ALONE = Cluster()
WARPS = 4  # of a warpgroup


def cluster_of(c: Config) -> Cluster:
    """The cluster the config asks for."""
    return _cluster(c.cluster_size, c.multicast)


@cache
def _cluster(size: int, multicast: str) -> Cluster:
    shared = None if multicast == "none" else multicast
    return Cluster(size=size, shared=shared)  # type: ignore[arg-type]


def cost(p: Problem, c: Config, shape: Shape, target: Target, groups: int = 1) -> Cost:
    """Cost of `groups` times D[M, N] = A[M, K] B[N, K]^T under `c`. Ignores stages and raster: both are chosen
    for a tile, not between tiles. Raises ArgumentError for a side below 1."""
    of = launch(p, shape, target, groups)
    t = priced(of, c)
    work, busy, wave = t.work, t.full.busy, t.waves / target.clock_hz
    tiles = (t.waves - 1) * _resident(c, target) + t.last.busy
    return Cost(
        tiles=tiles,
        waves=t.waves,
        last_wave_use=t.last.busy / target.sms,
        l2_bytes=tiles * work.l2_bytes,
        dram_bytes=of.dram_bytes,
        smem_cycles=work.shared,
        seconds=t.seconds,
        tensor=wave * work.tensor,
        l2=wave * work.l2_bytes / _l2_rate(busy, target),
        shared=wave * work.shared,
        promotion=wave * work.promotion,
        epilogue=wave * work.epilogue,
        hbm=t.hbm,
        launch=t.launch,
    )


def terms(p: Problem, c: Config, shape: Shape, target: Target, groups: int = 1) -> Terms:
    """What `cost`'s seconds add up from. Raises ArgumentError for a side below 1."""
    return priced(launch(p, shape, target, groups), c)


def priced(of: Launch, c: Config) -> Terms:
    """`terms` of many configs of one launch."""
    p, target, cluster = of.problem, of.target, cluster_of(c)
    high, wide = of.covering(c.block_m * cluster.m), ceil(of.shape[1], c.block_n * cluster.n)
    clusters = of.groups * high * wide / len(of.rows)
    tiles, resident = round(clusters) * c.cluster_size, _resident(c, target)
    waves = ceil(tiles, resident)
    busy, last = min(tiles, resident), tiles - (waves - 1) * resident
    # No measurement credits multicast in a single wave; DeepGEMM forbids it there.
    work = _work(of, c, cluster if waves > 1 else ALONE)
    drawing = of.groups * (_drawing(of, c) / len(of.rows))
    full = _wave(work, c, busy, target)
    adding = of.groups * _adding(p, c, of.shape)
    return Terms(
        work=work,
        full=_followed(full, c),
        last=full if last == busy else _wave(work, c, last, target),
        waves=waves,
        tail=work.d_bytes / _l2_rate(last, target),
        clock_hz=target.clock_hz,
        hbm=max(of.dram_bytes / _hbm_rate(drawing / waves, target), adding),
        adding=adding,
        overlap=FIT.overlap,
        launch=FIT.launch,
    )


def _resident(c: Config, target: Target) -> int:
    """CTAs that run at once."""
    return target.clusters(c.cluster_size) * c.cluster_size


def count_tiles(c: Config, shape: Shape, groups: int = 1) -> int:
    """CTA tiles of the launch: whole clusters."""
    cluster = cluster_of(c)
    clusters = ceil(shape[0], c.block_m * cluster.m) * ceil(shape[1], c.block_n * cluster.n)
    return groups * clusters * cluster.size


def _drawing(of: Launch, c: Config) -> int:
    """Tiles that draw from HBM, of all `rows` of a group: not those that complete a cluster, nor swapped ones'
    second reads."""
    high = len(of.rows) if c.swap_ab else of.covering(c.block_m)
    return high * ceil(of.shape[1], c.block_n) * c.split_k


def _work(of: Launch, c: Config, cluster: Cluster) -> Work:
    (m, n, _), target, waves = of.shape, of.target, c.waves
    a_bytes = of.problem.a.bytes
    steps = ceil(ceil(of.k_bytes, c.block_k_bytes), c.split_k)
    line = c.block_k_bytes / target.smem_bytes_per_clock  # cycles per row of operand
    flops = 2 * target.wgmma_m * c.wgmma_n * c.block_k_bytes / a_bytes  # of 64 rows, per step
    mma = flops * a_bytes / target.fp8_flops_per_clock / FIT.wgmma_rate
    # Both operands come from shared memory, the second again for every 64 rows (the SS form of wgmma).
    reads = (target.wgmma_m + c.wgmma_n) * line
    competing = FIT.turn_writes if c.ping_pong else FIT.smem_writes
    writes = (c.block_m + c.block_n) * line * competing
    blocks = c.wgmma_m // target.wgmma_m
    promotion, scales = waves * _promotion(of, c), _column_scales(of.problem, c)
    added = sum(x.adds(c) for x in MORE.values())
    # What a tile reaches beyond the matrix is zero-filled by TMA and costs no L2 traffic.
    rows, cols = min(c.block_m, m), min(c.block_n, n)
    loads = of.k_bytes * (rows / cluster.n + cols / cluster.m) / c.split_k
    d_bytes = rows * cols * of.d_bytes / c.split_k
    return Work(
        steps=steps,
        tensor=steps * blocks * mma,
        shared=steps * (blocks * reads + writes + scales),
        promotion=steps * promotion,
        scales=steps * scales,
        chain=steps * (waves * max(mma, reads) + promotion + scales),
        cluster=steps * (_lockstep(of.problem) * bool(cluster.shared) + added),
        epilogue=_fixed(c) + _staging(of, c),
        l2_bytes=loads + d_bytes + (4 * rows * steps if of.promotes else 0),
        d_bytes=d_bytes,
    )


def _promotion(of: Launch, c: Config) -> float:
    """Cycles per wave and K block between the end of one wgmma group and the start of the next."""
    if not of.promotes:
        return 0 if c.in_flight else FIT.drain
    return c.wgmma_n / 2 * FIT.ffma * _dearer(of.problem, c) + FIT.drain


def _column_scales(p: Problem, c: Config) -> float:
    """Cycles per K block that shared memory takes to give each consumer warp a register per 4 columns: once for
    all its waves, or again for each where parts take turns."""
    if not recipe(p.family).scales_columns:
        return 0
    loads = c.waves if c.parts > 1 else 1
    return WARPS * c.sharing * loads * c.wgmma_n / LANE_COLUMNS * FIT.column_load


def _lockstep(p: Problem) -> float:
    return FIT.cluster + FIT.cluster_of_columns * recipe(p.family).scales_columns


def _fixed(c: Config) -> float:
    """Cycles of an epilogue whatever its tile."""
    if c.ping_pong:
        return FIT.turn_epilogue
    return FIT.epilogue + FIT.epilogue_of_three * (c.consumers == 3)


def _piece(of: Launch, c: Config) -> float:
    if not c.ping_pong:
        return FIT.piece
    narrow = (c.d_columns or 0) * of.problem.d.bytes < LINE // 2
    return FIT.turn_piece + FIT.turn_narrow * narrow


def _staging(of: Launch, c: Config) -> float:
    """Cycles to write D's tile into shared memory, and first to bring the sums of CTAs that divide K together."""
    pieces = c.waves * c.block_n / c.d_columns if c.d_columns else 0
    written = c.block_m * c.block_n * of.d_bytes / FIT.staging
    return written + pieces * _piece(of, c) + exchange_cycles(c)


def exchange_cycles(c: Config) -> float:
    """SM cycles per tile until the sums of the CTAs that divide K are together in one; 0 if none do."""
    sent = 4 * c.block_m * c.block_n * (c.split_k - 1)
    return FIT.exchange * (c.split_k > 1) + sent / FIT.exchange_rate


def _wave(w: Work, c: Config, busy: int, target: Target) -> Wave:
    """One wave of `busy` SMs. Several consumers promote under each other's MMAs, one cannot."""
    l2 = w.l2_bytes / _l2_rate(busy, target)
    exposed = (0, *FIT.promotion_exposed)[c.sharing - 1]
    shallow = FIT.turn_whole * max(w.tensor, w.shared, l2) * (c.ping_pong and not c.d_columns)
    return Wave(
        busy=busy,
        tensor=w.tensor,
        shared=w.shared,
        l2=l2,
        chain=w.chain,
        l2_exposed=FIT.l2_exposed * l2 + shallow,
        cluster=w.cluster,
        epilogue=w.epilogue,
        promotion=exposed * w.promotion,
    )


def _followed(wave: Wave, c: Config) -> Wave:
    """A wave after which another comes. Where warpgroups take tiles in turns, that one is multiplied meanwhile:
    of the epilogue shows what is longer than the others' main loops."""
    if not c.ping_pong:
        return wave
    shown = max(0.0, wave.epilogue - (c.turns - 1) * wave.main) / c.turns
    return replace(wave, epilogue=FIT.turn + shown)


def _l2_rate(busy: int, target: Target) -> float:
    return min(FIT.l2_port, FIT.l2_rate * target.l2_bytes_per_clock / busy)


def _hbm_rate(busy: float, target: Target) -> float:
    """Bytes per second; a few SMs cannot keep enough bytes in flight to fill HBM."""
    return target.hbm_bytes_per_second * FIT.hbm_rate * min(1, busy / target.sms * FIT.hbm_share)


def _adding(p: Problem, c: Config, shape: Shape) -> float:
    """Seconds that L2 takes to add to D, if it does."""
    row = (c.d_columns or c.block_n) * p.d.bytes
    narrow = 1 if row % LINE == 0 else FIT.add_narrow if row % (LINE // 2) else FIT.add_half
    return p.accumulate * shape[0] * shape[1] * p.d.bytes / FIT.add_rate * narrow


def selects(p: Problem, block_n: int) -> bool:
    """Whether promotion picks one of two block scales column by column."""
    return recipe(p.family).scales_blocks and _straddling(block_n) == FIT.select


def _dearer(p: Problem, c: Config) -> float:
    """How much longer promotion takes than with one scale per row."""
    of = recipe(p.family)
    if of.scales_columns:
        return FIT.per_column
    return (1.0, FIT.per_pair)[of.scales_blocks] if c.swap_ab else _straddling(c.block_n)


@cache
def _straddling(block_n: int) -> float:
    """How much longer promotion takes where a tile can touch two scale blocks."""
    if blocks_touched(block_n) == 1:
        return 1.0
    return FIT.copies if copied(block_n) else FIT.select
