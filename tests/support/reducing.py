"""GPUs that all store the sum of all, on the emulator."""

from __future__ import annotations

from dataclasses import replace

from emulated import prepared
from scattering import node

from gemmgen.verification import exact_integers, ranked


def reduced(problem, wire=None):
    return replace(problem, collective="all_reduce", wire=wire)


def shape_of(problem, config, ranks, tiles=2, k_blocks=2, tail=True):
    """`tiles` along N of one row of them, and a tail on every side but K's, of which each rank has `k_blocks`."""
    k = config.block_k_bytes * 8 // problem.a.bits
    rows = config.block_m + 8 * tail
    return rows, tiles * config.block_n - 8 * tail, ranks * k_blocks * k


def calls_of(problem, shape, count, draw=exact_integers):
    return [draw(problem.alone, *shape, seed) for seed in range(count)]


def launched(problem, config, ranks, calls=1, draw=exact_integers, edits=(), **fields):
    """GEMMs, and by each and rank what is stored."""
    kernel, program = prepared(problem, config, edits)
    wholes = calls_of(problem, shape_of(problem, config, ranks), calls, draw)
    return wholes, ranked.run(node(ranks, **fields), program, kernel, problem, wholes, pad=1)


def judge(problem, config, ranks, calls=2, wire=None, **fields):
    """Exact integers, in calls that follow each other, each to the bit on every rank."""
    problem = reduced(problem, wire)
    wholes, got = launched(problem, config, ranks, calls, **fields)
    for whole, results in zip(wholes, got, strict=True):
        ranked.check_exact(node(ranks), problem, whole, results)
