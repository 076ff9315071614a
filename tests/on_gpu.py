"""Kernels on trial on a Hopper GPU, as `emulated.py` puts them on the emulator."""

from __future__ import annotations

from functools import cache

from kernels import fitting

from gemmgen.config import Config
from gemmgen.errors import IllegalConfig
from gemmgen.pipeline import lower
from gemmgen.verification import random_normal


@cache
def machine():
    from gemmgen.runtime.gpu import Gpu

    return Gpu()


def judged(p, c, shape, groups=None, pad=0, seed=0):
    """The verdict on the kernel that `gemmgen.ops` loads."""
    from gemmgen import ops
    from gemmgen.verification.trial import judge

    program = ops.loaded(p, c, 0)
    return judge(machine(), program, program.kernel, p, fitting(p, shape), seed, pad, groups)


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
