"""What a config costs whose warps load their operands into registers: nothing but how fast they come and are used."""

from __future__ import annotations

from dataclasses import replace

from .config import Config
from .cost_fit import FIT
from .cost_launch import Workload, ceil
from .cost_terms import Terms, Wave, Work
from .levers.direct import per_sm

# Of 16-bit operands on an H100, at Target.clock_hz: tests/data/direct.csv, 21 pairs of N and K, M = 1 to 16, where they are off by 2.2 %.
# Cycles until a load is there, and of a K block of 128 bytes beside it, and more for each row of the tile; of HBM's
# peak, what such loads reach.
LATENCY, BLOCK, ROW = 790.0, 135.0, 9.7
HBM_RATE = 0.79
# Of operands of 8 bits, beside those of the others: each warp converts A's rows; and of scales, which come first. tests/data/direct_fp8.csv,
# FP8 with block scales, six pairs, where they are off by 3.5 %.
ROW_CONVERTED, FIRST_SCALES = 27.0, 730.0
K_BYTES = 128


def direct(of: Workload, c: Config, whole: Work, tiles: int) -> Terms:
    """Of so many tiles, each of `c.split_k` CTAs. whole: what a tile takes with a ring, of which the epilogue is the same."""
    target, resident = of.target, of.target.clusters(c.split_k) * c.split_k * per_sm(c, of.target)
    waves, busy = ceil(tiles * c.split_k, resident), min(tiles * c.split_k, resident)
    row = ROW_CONVERTED if of.problem.a.bytes == 1 else ROW
    first = FIRST_SCALES * of.recipe.scaled
    # A CTA waits once for as many K blocks as it holds.
    block = LATENCY / c.stages + (BLOCK + row * c.block_m) * c.block_k_bytes / K_BYTES
    work = replace(
        whole,
        tensor=0,
        shared=0,
        promotion=0,
        scales=0,
        chain=whole.steps * block,
        cluster=0,
        epilogue=whole.epilogue + first,
    )
    wave = Wave(
        busy=min(busy, target.sms),
        tensor=0,
        shared=0,
        l2=0,
        chain=work.chain,
        l2_exposed=0,
        zeros=0,
        cluster=0,
        epilogue=work.epilogue,
        promotion=0,
    )
    return Terms(
        work=work,
        full=wave,
        last=wave,
        waves=waves,
        tail=0,
        clock_hz=target.clock_hz,
        hbm=of.dram_bytes / (target.hbm_bytes_per_second * HBM_RATE),
        again=0,
        adding=0,
        overlap=FIT.overlap,
        launch=target.launch_seconds,
    )
