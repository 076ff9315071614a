"""On a Hopper GPU: consumers that look at the next stage before they wait for it, bit for bit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from grouped import PROBLEMS, layout, problem
from kernels import FP8, GROUPED, VECTOR
from on_gpu import judged, legal, same_bits

from gemmgen.config import Config

pytestmark = pytest.mark.gpu

SIDES_M = (1, 63, 129, 300, 1024, 4097)
# One K block, as many as stages, one more, many; one tile of a CTA and many.
SIDES_NK = (
    *((2, 16), (130, 144), (258, 320), (514, 384), (1000, 1000), (1408, 2048)),
    *((4098, 520), (8192, 272), (3000, 4096)),
)
SHAPES = tuple((m, n, k) for m, (n, k) in itertools.product(SIDES_M, SIDES_NK))
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
    i = sum(shape)
    ways = [legal(p, replace(c, peek=True)) for c in WAYS.values()]
    config = [c for c in ways if c][i % sum(map(bool, ways))]
    judged(p, config, shape, pad=i % 3, seed=i)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_ways(name, way):
    """Of every family, those too that keep their sums in the tensor core."""
    p = problem(name, "none")
    config = legal(p, replace(WAYS[way], peek=True))
    if config is None:
        pytest.skip("not legal")
    for i, shape in enumerate(((130, 522, 272), (1025, 1024, 384), (4000, 1500, 1100))):
        judged(p, config, shape, pad=i, seed=i)


@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("name", PROBLEMS)
def test_groups(name, grouping):
    """Groups without rows and without K among them."""
    p = problem(name, grouping)
    config = legal(p, Config(peek=True, stages=3, block_m=64, block_n=64, consumers=1))
    assert config is not None
    for i, sizes in enumerate(((1, 0, 3, 17), (130, 0, 41), (64, 128, 1), (7,) * 32, (300, 65))):
        rows = max(sizes) if grouping != "rows" else sum(-(-s // 128) * 128 for s in sizes)
        shape = rows, (130, 522, 1024)[i % 3], (272, 400, 1024)[i % 3]
        judged(p, config, shape, layout(p, shape, sizes), pad=i % 3, seed=i)


@pytest.mark.parametrize("way", ("256x128", "192x128", "128x144", "64x64"))
def test_a_peek_changes_no_bit(way):
    c = WAYS[way]
    assert same_bits(FP8, (4096, 2112, 7168), (replace(c, peek=True), c), 3)
