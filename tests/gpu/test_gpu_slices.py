"""On a Hopper GPU: consumer warpgroups that divide K blocks, bit for bit where the result is exact."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from grouped import problem
from kernels import DENSE, DENSE_F32, SLICED, W4A16
from on_gpu import judged, judged_in_groups, legal, same_bits

pytestmark = pytest.mark.gpu

SHAPES = tuple(itertools.product((1, 16, 65), (64, 576, 4104), (64, 200, 7168)))
DECODED = {"block_k_bytes": 256, "in_flight": 1}


@pytest.mark.parametrize("consumers", (2, 3, 4))
@pytest.mark.parametrize("in_flight", (0, 1))
def test_results(consumers, in_flight):
    for i, shape in enumerate(SHAPES):
        rows = (8, 16, 64)[i % 3]
        c = replace(SLICED, consumers=consumers, stages=2 * consumers, in_flight=in_flight)
        judged(DENSE, replace(c, block_m=rows), shape, pad=i % 3, seed=i)


@pytest.mark.parametrize("consumers", (2, 3, 4))
@pytest.mark.parametrize("weights", ("int4_128_bf16", "int4_32_bf16_zeros", "e2m1_32_e8m0"))
def test_weights_of_4_bits(weights, consumers):
    c = replace(SLICED, consumers=consumers, stages=2 * consumers, **DECODED)
    for i, m in enumerate((1, 16, 40)):
        judged(replace(W4A16, weights=weights), c, (m, 576, 4096), seed=i)


@pytest.mark.parametrize("grouping", ("batched", "masked", "ends"))
def test_groups(grouping):
    judged_in_groups(problem("bf16", grouping), SLICED)


def test_stages_and_tiles_change_no_bit():
    ways = [SLICED, replace(SLICED, in_flight=1), replace(SLICED, stages=3, block_m=32)]
    assert all(legal(DENSE_F32, c) for c in ways)
    for seed, shape in enumerate(SHAPES[::4]):
        assert same_bits(DENSE_F32, shape, tuple(ways), seed)
