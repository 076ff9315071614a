"""On a Hopper GPU: consumers that take tiles in turns, bit for bit where the result is exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grouped import PROBLEMS, problem
from kernels import DENSE, DENSE_F32, DENSE_TN, GROUPED
from on_gpu import (
    SHAPES,
    judged,
    judged_at_tails,
    judged_in_groups,
    judged_in_one_way,
    legal,
    same_bits,
)

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.dtypes import E4M3, S8

pytestmark = pytest.mark.gpu

FAST = replace(DENSE, a=E4M3, b=E4M3)
SCALED = replace(FAST, epilogue=EPILOGUES["scaled"])
INT8 = replace(DENSE, a=S8, b=S8, epilogue=EPILOGUES["scaled"])
ADDED = replace(DENSE_F32, accumulate=True)
WAYS = {
    "128x128": Config(stages=5),
    "128x128 pieces": Config(stages=6, d_columns=64, multicast="b"),
    "128x192": Config(block_n=192, stages=4, d_columns=64, multicast="a"),
    "128x176": Config(block_n=176, stages=5, d_columns=16),
    "64x256": Config(block_m=64, block_n=256, stages=4, multicast="b"),
    "192x128": Config(block_m=192, stages=5, d_columns=32, swizzle_d=64, multicast="a"),
    "two stages": Config(block_n=64, stages=2),
    "three": Config(block_m=64, block_n=128, consumers=3, stages=4),
}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("p", (DENSE, FAST, SCALED, INT8), ids=("bf16", "e4m3", "scaled", "s8"))
def test_shapes(p, shape):
    i = sum(shape) + len(p.a.name)
    ways = (replace(c, ping_pong=True, in_flight=i % 2) for c in WAYS.values())
    judged_in_one_way(p, ways, shape, i)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_ways(name, way):
    """Of every family, those that promote too."""
    p = problem(name, "none")
    config = legal(p, replace(WAYS[way], ping_pong=True))
    if config is None:
        pytest.skip("not legal")
    judged_at_tails(p, config)


@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("name", PROBLEMS)
def test_groups(name, grouping):
    p = problem(name, grouping)
    config = legal(p, Config(ping_pong=True, stages=3, block_m=64, block_n=64, multicast="a"))
    config = config or legal(p, Config(ping_pong=True, stages=3, block_n=64))
    assert config is not None
    judged_in_groups(p, config)


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(epilogue):
    p = replace(DENSE, epilogue=EPILOGUES[epilogue])
    config = legal(p, Config(ping_pong=True, block_n=96, stages=4, in_flight=1))
    assert config is not None
    for shape in ((130, 522, 272), (3000, 2600, 1000)):
        judged(p, config, shape, pad=1, seed=3)


@pytest.mark.parametrize("p", (DENSE, FAST, ADDED, DENSE_TN), ids=("bf16", "e4m3", "added", "tn"))
def test_turns_change_no_bit(p):
    """On random data: the same sums, by another warpgroup."""
    shared = Config(block_n=64, stages=3)
    for shape in ((152, 504, 704), (4096, 3000, 2048)):
        assert same_bits(p, shape, (shared, replace(shared, ping_pong=True)), 4)


@pytest.mark.parametrize("p", (DENSE, FAST), ids=("bf16", "e4m3"))
def test_swapped_and_overlapped_launches(p):
    swapped = Config(ping_pong=True, swap_ab=True, block_m=16, block_n=128, stages=4, in_flight=1)
    for config in (swapped, Config(ping_pong=True, pdl=True, stages=4, in_flight=1)):
        for shape in ((16, 4096, 1024), (300, 5000, 520)):
            judged(p, config, shape, pad=1, seed=2)
