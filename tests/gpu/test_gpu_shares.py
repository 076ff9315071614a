"""On a Hopper GPU: shares of K that one CTA adds up leave the bits of CTAs that divide K."""

from __future__ import annotations

import itertools

import pytest
from grouped import PROBLEMS, problem
from on_gpu import judged, judged_in_groups, legal, same_bits

from gemmgen.config import Config

pytestmark = pytest.mark.gpu

SIDES_M = (1, 65, 300, 4097)
SIDES_NK = ((2, 16), (258, 400), (576, 7168), (1408, 2048))
SHAPES = tuple((m, n, k) for m, (n, k) in itertools.product(SIDES_M, SIDES_NK))
WAYS = (
    {},
    {"block_m": 64, "block_n": 64, "consumers": 1, "unroll": 4},
    {"block_m": 256, "block_n": 64, "multicast": "a"},
    {"swap_ab": True, "block_m": 32, "block_n": 128},
)


def configs(p, shares):
    in_flight = int(p.family == "dense")
    ways = (Config(**{"stages": 3, "shares": shares, "in_flight": in_flight} | w) for w in WAYS)
    return [c for c in ways if legal(p, c)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_bits_are_those_of_a_cluster(name, shape):
    p, shares = problem(name, "none"), (2, 4, 8)[sum(shape) % 3]
    cluster = Config(block_m=64, block_n=64, consumers=1, split_k=shares)
    assert same_bits(p, shape, (cluster, *configs(p, shares)), sum(shape))


@pytest.mark.parametrize("name", PROBLEMS)
def test_results(name):
    p = problem(name, "none")
    for i, shape in enumerate(SHAPES[::3]):
        found = configs(p, (2, 4, 8)[i % 3])
        judged(p, found[i % len(found)], shape, pad=i % 3, seed=i)


@pytest.mark.parametrize("grouping", ("batched", "masked", "rows"))
def test_groups(grouping):
    for name in ("fp8_block", "f16_f32"):
        judged_in_groups(problem(name, grouping), Config(block_n=64, stages=3, shares=4))
