"""Kernels on trial on a Hopper GPU, as `emulated.py` puts them on the emulator."""

from __future__ import annotations

import itertools
from functools import cache

from grouped import layout
from kernels import fitting

from gemmgen.config import Config
from gemmgen.errors import IllegalConfig
from gemmgen.pipeline import lower
from gemmgen.verification import random_normal

SIDES_M = (1, 63, 129, 300, 1024, 4097)
# One K block, as many as stages, one more, many; one tile of a CTA, an odd and an even number, many.
SIDES_NK = (
    *((2, 16), (130, 144), (258, 320), (514, 384), (1000, 1000), (1408, 2048)),
    *((4098, 520), (8192, 272), (3000, 4096)),
)
SHAPES = tuple((m, n, k) for m, (n, k) in itertools.product(SIDES_M, SIDES_NK))
TAILS = (130, 522, 272), (1025, 1024, 384), (4000, 1500, 1100)
SIZES = (1, 0, 3, 17), (130, 0, 41), (64, 128, 1), (7,) * 32, (300, 65)


@cache
def machine():
    from gemmgen.runtime.gpu import Gpu

    return Gpu()


def judged(p, c, shape, groups=None, pad=0, seed=0):
    """The verdict on the kernel that `gemmgen.ops` loads."""
    from gemmgen import ops
    from gemmgen.verification.trial import judge

    program = ops.loaded(p, c, 0)
    return judge(
        machine(), program, program.kernel, p, fitting(p, shape, program.kernel), seed, pad, groups
    )


def judged_in_one_way(p, ways, shape, i):
    """At `shape`, in the i-th of the legal ones among the configs `ways`."""
    found = [c for c in ways if legal(p, c)]
    judged(p, found[i % len(found)], shape, pad=i % 3, seed=i)


def judged_at_tails(p, c):
    for i, shape in enumerate(TAILS):
        judged(p, c, shape, pad=i, seed=i)


def judged_in_groups(p, c):
    """Groups without rows and without K among them."""
    for i, sizes in enumerate(SIZES):
        rows = max(sizes) if p.grouping != "rows" else sum(-(-s // 128) * 128 for s in sizes)
        shape = rows, (130, 522, 1024)[i % 3], (272, 400, 1024)[i % 3]
        judged(p, c, shape, layout(p, shape, sizes), pad=i % 3, seed=i)


def same_bits(p, shape, configs, seed):
    """Whether the kernels of all `configs` leave the same bits on random data."""
    from gemmgen import ops
    from gemmgen.verification.trial import output, pitches

    operands, found = random_normal(p, *shape, seed), []
    for c in configs:
        program = ops.loaded(p, c, 0)
        strides = pitches(program.kernel, shape)
        d = output(p, operands, strides)
        found.append(d.extract(machine().execute(program, operands, strides, d, 0xFF)))
    return all((found[0] == x).all() for x in found)


def legal(p, c: Config) -> Config | None:
    """`c` if the passes take it."""
    try:
        lower(p, c)
    except IllegalConfig:
        return None
    return c
