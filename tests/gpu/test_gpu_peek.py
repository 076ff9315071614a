"""On a Hopper GPU: consumers that look at the next stage before they wait for it, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grouped import PROBLEMS, problem
from kernels import FP8, GROUPED, VECTOR
from on_gpu import (
    SHAPES,
    judged_at_tails,
    judged_in_groups,
    judged_in_one_way,
    legal,
    same_bits,
)

from gemmgen.config import Config

pytestmark = pytest.mark.gpu

WAYS = {
    "256x128": Config(block_m=256, stages=3, multicast="a"),
    "192x128": Config(block_m=192, consumers=3, multicast="a"),
    "128x144": Config(block_n=144, stages=5),
    "64x64": Config(block_m=64, block_n=64, consumers=1, stages=8),
    "one stage": Config(block_m=64, block_n=32, consumers=1, stages=1),
    "exchanged": Config(swap_ab=True, block_m=16, block_n=128, stages=6),
    "split K": Config(block_m=64, block_n=32, consumers=1, split_k=4, stages=5),
    "in parts": Config(parts=2, in_flight=1),
}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("p", (FP8, replace(VECTOR, accumulate=True)), ids=lambda p: p.family)
def test_shapes(p, shape):
    ways = (replace(c, peek=True) for c in WAYS.values())
    judged_in_one_way(p, ways, shape, sum(shape))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_ways(name, way):
    """Of every family, those too that keep their sums in the tensor core."""
    p = problem(name, "none")
    config = legal(p, replace(WAYS[way], peek=True))
    if config is None:
        pytest.skip("not legal")
    judged_at_tails(p, config)


@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("name", PROBLEMS)
def test_groups(name, grouping):
    p = problem(name, grouping)
    config = legal(p, Config(peek=True, stages=3, block_m=64, block_n=64, consumers=1))
    assert config is not None
    judged_in_groups(p, config)


@pytest.mark.parametrize("way", ("256x128", "192x128", "128x144", "64x64"))
def test_a_peek_changes_no_bit(way):
    c = WAYS[way]
    assert same_bits(FP8, (4096, 2112, 7168), (replace(c, peek=True), c), 3)
