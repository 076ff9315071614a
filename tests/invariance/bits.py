"""The bits of some rows, wherever they lie: of any config, any M and any grouping, by the emulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from gemmgen.config import Config
from gemmgen.emit import emit
from gemmgen.pipeline import lower
from gemmgen.recipes import recipe
from gemmgen.verification import random_normal
from gemmgen.verification.groups import owned
from gemmgen.verification.inputs import grouped
from gemmgen.verification.trial import pitches, run

ROWS = 8  # that are told apart: row i of every group is number (i + first) % ROWS
FILL = 0xFF


@cache
def base(p, n, k, seed=1):
    """ROWS rows of random data and all of B, of a problem without groups."""
    return random_normal(p, ROWS, n, k, seed)


def placed(p, m, n, k, first):
    """The same rows over and over in M rows, or in M rows of every group."""
    of = base(replace(p, grouping="none"), n, k)

    def draw(problem, shape, seed, summed):
        take = (np.arange(shape[0]) + first) % ROWS
        scales = {} if of.scale_a is None else {"scale_a": of.scale_a[take]}
        return replace(of, a=of.a[take], **scales)

    return grouped(p, (m, n, k), 0, None, draw)


def bits(p, c, m, n, k, first=0):
    """Codes [ROWS, N] of D: of each row, wherever it lies, the same; AssertionError if not."""
    from gemmgen.runtime.emulated import EmulatedGpu, prepare

    kernel = lower(p, c)
    operands, machine = placed(p, m, n, k, first), EmulatedGpu()
    strides = pitches(kernel, operands.shape)
    got = run(machine, prepare(kernel, emit(kernel)), p, operands, strides, FILL)
    codes = np.asarray(machine.engine.lower(got.codes))
    mine = owned(p, m, operands.layout, strides.gap)
    numbers = (np.arange(len(codes)) % m + first) % ROWS
    found = []
    for i in range(ROWS):
        same = codes[mine & (numbers == i)]
        assert len(same) == 0 or (same == same[0]).all(), f"row {i} has other bits elsewhere"
        found.append(same[0] if len(same) else np.full(codes.shape[1], -1, codes.dtype))
    return np.stack(found)


def plain(p, split_k):
    """What every other config with these shares is held against."""
    r = recipe(p.family)
    coded = {"swap_ab": True, "block_k_bytes": p.form.k_bytes} if p.form else {}
    tile = {"block_m": 64, "block_n": 64, "consumers": 1, "stages": 2}
    return Config(**tile, **coded, split_k=split_k, in_flight=int(not r.promotes))
