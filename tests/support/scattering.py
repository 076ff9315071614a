"""GPUs that add their sums up, on the emulator: kernels of every kind, their operands, and a GPU that is slow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from collective_kinds import KINDS as EVERY
from collective_kinds import PLAIN
from collective_kinds import SWAPPED as SWAPPED
from emulated import prepared
from kernels import (
    DENSE,
    DIRECT,
    FP8,
    QUANTISED,
)

from gemmgen.codes import decode
from gemmgen.emulator import RoundRobin
from gemmgen.ir.dtypes import F32
from gemmgen.verification import exact_integers, ranked, trial


def scattered(problem, wire=None):
    return replace(problem, collective="reduce_scatter", wire=wire)


def node(ranks, **fields):
    from gemmgen.runtime.emulated_ranks import EmulatedRanks

    return EmulatedRanks(ranks=ranks, **{"sms": 3, **fields})


def shape_of(problem, config, ranks, tiles=2, k_blocks=2, tail=True):
    """`tiles` along N of one row of them in each rank's, and a tail on every side but K's."""
    k = config.block_k_bytes * 8 // problem.a.bits
    rows = config.block_m + 8 * tail
    return ranks * rows, tiles * config.block_n - 8 * tail, ranks * k_blocks * k


def calls_of(problem, shape, count, draw=exact_integers):
    return [draw(problem.alone, *shape, seed) for seed in range(count)]


def judge(problem, config, ranks, calls=2, wire=None, **fields):
    """Exact integers, in calls that follow each other, each to the bit."""
    problem = scattered(problem, wire)
    kernel, program = prepared(problem, config)
    wholes = calls_of(problem, shape_of(problem, config, ranks), calls)
    machines = node(ranks, **fields)
    got = ranked.run(machines, program, kernel, problem, wholes, pad=1)
    for whole, results in zip(wholes, got, strict=True):
        ranked.check_exact(machines, problem, whole, results)


KINDS = {
    **EVERY,
    "fp8_lanes": (FP8, replace(PLAIN, block_n=64, lane_scales=True)),
    "direct": (DENSE, DIRECT),
    "fp8_direct": (FP8, replace(DIRECT, lane_scales=True, unroll=4)),
    "quantised": (QUANTISED, replace(PLAIN, block_n=128)),
}


def plain_sums(problem, config, cut):
    """By rank, the FP32 result of one GPU's GEMM over what it is handed."""
    from gemmgen.runtime.emulated import EmulatedGpu

    kernel, program = prepared(problem, config)
    strides = trial.pitches(kernel, cut.handed[0].shape)
    found = (trial.run(EmulatedGpu(), program, problem, x, strides, 0x5A) for x in cut.handed)
    return [np.float32(decode(x.codes, F32)) for x in found]


@dataclass(kw_only=True)
class Slow:
    """One GPU gets a turn only where no other's threads have any left, and otherwise every so often."""

    rank: int
    every: int = 9
    budget: int = 300
    inner: RoundRobin = field(default_factory=RoundRobin)

    def next(self, groups, pending, turn):
        mine = [g for g in groups if g.cta.cluster.origin.device == self.rank]
        rest = [g for g in groups if g.cta.cluster.origin.device != self.rank]
        return self.inner.next(
            mine if not rest or (turn % self.every == 0 and mine) else rest, pending, turn
        )

    def gives_up(self):
        return False
