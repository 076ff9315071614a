"""Block scales that lanes read, wherever they lie: any strides, nothing before the first or behind the last, the bits of a box."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from emulated import machine
from grouped import layout, problem
from kernels import FP8, GROUPED, emitted
from link_configs.draw import config

from gemmgen import emulator
from gemmgen.config import Config
from gemmgen.errors import ArgumentError, IllegalConfig, UnsupportedProblem
from gemmgen.verification import random_normal

pytestmark = pytest.mark.nvrtc

SMALL = {"block_m": 64, "block_n": 32, "stages": 2, "consumers": 1, "lane_scales": True}
SWAPPED = {"swap_ab": True, "block_m": 16, "block_n": 64}

# Elements from group to group, row to row and K block to K block, of so many groups, rows and blocks.
LYING = {
    "row by row": lambda g, m, k: (m * k, k, 1),
    "rows apart": lambda g, m, k: (m * (k + 3) + 5, k + 3, 1),
    "along M": lambda g, m, k: (m * k, 1, m),
    "columns apart": lambda g, m, k: (k * (m + 3) + 1, 1, m + 3),
    "neither contiguous": lambda g, m, k: (7 * m * k, 7 * k, 7),
    "groups innermost": lambda g, m, k: (1, g, g * m),
    "blocks outermost": lambda g, m, k: (m, 1, g * m),
    "rows far apart": lambda g, m, k: (k, (1 << 17) + 1, 1),
}


def lying(scale, strides, place):
    """Its address, its elements so far apart in memory that ends with the last; between them are NaN."""
    parent = np.full(
        sum((n - 1) * s for n, s in zip(scale.shape, strides, strict=True)) + 1, np.nan, np.float32
    )
    view = np.lib.stride_tricks.as_strided(parent, scale.shape, [4 * s for s in strides])
    view[...] = scale
    return place(parent.view(np.uint8).reshape(1, -1))


def read_from(monkeypatch, where):
    """Have the emulator's launches find A's scales as `LYING[where]` says."""
    from gemmgen.runtime import emulated

    real = emulated.bind

    def bind(operands, pitches, out, place, scale_d=0):
        bound, scale = real(operands, pitches, out, place, scale_d), operands.scale_a
        strides = LYING[where](*(1,) * (3 - scale.ndim), *scale.shape)
        bound.values["scale_a"] = lying(scale, strides[3 - scale.ndim :], place)
        for axis, stride in zip("gmk", strides, strict=True):
            bound.values[f"scale_a_stride_{axis}"] = stride
        return bound

    monkeypatch.setattr(emulated, "bind", bind)


def bits(p, c, shape, groups=None, broken=None, seed=1, one_row=False):
    """Of D, on random data. one_row: all rows have the first one's scales."""
    gpu = machine(sms=2)
    from gemmgen.runtime.emulated import prepare
    from gemmgen.verification.trial import output, pitches

    a = emitted(p, c)
    source = broken(a.source) if broken else a.source
    assert not broken or source != a.source
    operands = random_normal(p, *shape, seed, groups)
    if one_row:
        scale = operands.scale_a
        operands = replace(operands, scale_a=np.broadcast_to(scale[..., :1, :], scale.shape))
    strides = pitches(a.kernel, shape)
    d = output(p, operands, strides)
    return d.extract(gpu.execute(prepare(a.kernel, source), operands, strides, d, 0xFF))


def same_as_a_box(p, c, shape, groups=None, **options):
    ways = (c, c.having(lane_scales=False))
    return np.array_equal(*(bits(p, x, shape, groups, **options) for x in ways))


@pytest.mark.parametrize("changes", ({}, SWAPPED, {"split_k": 4}), ids=str)
@pytest.mark.parametrize("shape", ((1, 8, 128), (1, 40, 1300), (65, 8, 16), (70, 40, 1100)))
@pytest.mark.parametrize("where", LYING)
def test_wherever_they_lie(where, shape, changes, monkeypatch):
    """One row, one K block, fewer K blocks than CTAs that divide them, tails: nothing outside them is read."""
    read_from(monkeypatch, where)
    assert same_as_a_box(FP8, Config(**SMALL | changes), shape)


@pytest.mark.parametrize("changes", ({}, SWAPPED), ids=str)
@pytest.mark.parametrize("strides", ((0, 0, 0), (0, 0, 1)), ids=str)
def test_rows_that_share_their_scales(strides, changes, monkeypatch):
    monkeypatch.setitem(LYING, "shared", lambda g, m, k: strides)
    read_from(monkeypatch, "shared")
    shape = (70, 40, 1100 if strides[-1] else 128)
    assert same_as_a_box(FP8, Config(**SMALL | changes), shape, one_row=True)


@pytest.mark.parametrize("where", ("row by row", "columns apart", "groups innermost"))
@pytest.mark.parametrize("changes", ({}, SWAPPED), ids=str)
@pytest.mark.parametrize("sizes", ((0, 0, 70), (70, 0, 0), (1, 64, 5)), ids=str)
@pytest.mark.parametrize("grouping", GROUPED)
def test_groups(grouping, sizes, changes, where, monkeypatch):
    """The last one's last row and K block are the last of what lies there; empty ones come first and last."""
    p, shape = problem("fp8_block", grouping), (192, 40, 700)
    read_from(monkeypatch, where)
    assert same_as_a_box(p, Config(**SMALL | changes), shape, layout(p, shape, sizes))


def drawn(random):
    """A problem, a config that is legal for it, a shape, groups, and where scales lie."""
    while True:
        p = problem(
            random.choice(("fp8_block", "fp8_block_f32", "s8_block")),
            random.choice(["none", *GROUPED]),
        )
        try:
            c = config(random).having(lane_scales=True, block_k_bytes=128)
            emitted(p, c), emitted(p, c.having(lane_scales=False))
        except (ArgumentError, IllegalConfig, UnsupportedProblem):
            continue
        shape = (random.randint(1, 300), 8 * random.randint(1, 40), 16 * random.randint(1, 120))
        sizes = [random.choice((0, 1, 63, 64, 100)) for _ in range(random.randint(1, 4))]
        groups = None if p.grouping == "none" else layout(p, shape, tuple(sizes))
        return p, c, shape, groups, random.choice([*LYING])


@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_drawn(seed, monkeypatch):
    p, c, shape, groups, where = drawn(Random(seed))
    read_from(monkeypatch, where)
    assert same_as_a_box(p, c, shape, groups, seed=seed), (p, c, shape, groups, where)


# What is wrong in the text: (config, what is right, what is wrong, shape).
BEYOND = {
    "the last row": ({}, "min(row + 8 * i, shape_m - 1)", "(row + 8 * i)", (1, 8, 128)),
    "the last row, swapped": (
        SWAPPED,
        "min(row + 8 * i, shape_m - 1)",
        "(row + 8 * i)",
        (1, 8, 128),
    ),
    "the last K block": ({}, "min(lane % 4, tile.k_blocks - 1)", "(lane % 4)", (1, 8, 128)),
    "the last K block, ahead": (
        {},
        "min(chunk + 4 + lane % 4, tile.k_blocks - 1)",
        "(chunk + 4 + lane % 4)",
        (1, 8, 640),
    ),
    "the last K block of a share": (
        {"split_k": 2},
        "min(tile.k_first / 128 + lane % 4, (shape_k - 1) / 128)",
        "(tile.k_first / 128 + lane % 4)",
        (1, 8, 256),
    ),
}


@pytest.mark.parametrize("where", ("row by row", "along M"))
@pytest.mark.parametrize("fault", BEYOND)
def test_what_reads_beyond_shows(fault, where, monkeypatch):
    changes, right, wrong, shape = BEYOND[fault]
    read_from(monkeypatch, where)
    with pytest.raises(emulator.IllegalAccess):
        bits(FP8, Config(**SMALL | changes), shape, broken=lambda t: t.replace(right, wrong))
