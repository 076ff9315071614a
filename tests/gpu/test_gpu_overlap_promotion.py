"""On a Hopper GPU: pieces of a K block promoted while the next is multiplied, bit for bit where the result is exact."""

from __future__ import annotations

import itertools

import pytest
from grouped import PROBLEMS, layout, problem
from kernels import GROUPED
from on_gpu import judged

from gemmgen.config import Config
from gemmgen.errors import IllegalConfig
from gemmgen.passes.overlap_promotion import MOST_UNROLL
from gemmgen.pipeline import lower

pytestmark = pytest.mark.gpu

PROMOTING = tuple(n for n in PROBLEMS if PROBLEMS[n]["family"] != "dense")
SIDES_M = (1, 65, 300, 4097)
SIDES_NK = ((2, 16), (258, 400), (1408, 2048), (4098, 520))
SHAPES = tuple((m, n, k) for m, (n, k) in itertools.product(SIDES_M, SIDES_NK))
# Two waves, two parts, both, and one consumer.
WAYS = (
    {"block_m": 256, "block_n": 80},
    {"block_n": 128, "parts": 2},
    {"block_m": 256, "block_n": 64, "parts": 2, "unroll": 4},
    {"block_m": 128, "block_n": 48, "consumers": 1},
)


def overlapped(p, **changes) -> Config:
    config = Config(**{"stages": 3, "in_flight": 1} | changes)
    try:
        lower(p, config)
    except IllegalConfig as e:
        if e.rule.id == "overlap-unroll" and changes["unroll"] > MOST_UNROLL:
            return overlapped(p, **changes | {"unroll": MOST_UNROLL})
        known = ("multicast-slice", "overlap-columns")
        assert e.rule.id in known or (e.rule.id == "wgmma-n" and p.a.integer), e
        return overlapped(p, **changes | {"block_n": 64, "multicast": "none"})
    return config


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", PROMOTING)
def test_shapes(name, shape):
    p, i = problem(name, "none"), sum(shape)
    for n, way in enumerate(WAYS):
        config = overlapped(p, multicast=("none", "a", "b")[(i + n) % 3], **way)
        judged(p, config, shape, pad=i % 3, seed=i)


@pytest.mark.parametrize("grouping", GROUPED)
def test_groups(grouping):
    p = problem("fp8_block", grouping)
    shape, sizes = (600, 520, 400), (70, 0, 33, 257)
    config = overlapped(p, block_m=128, block_n=128, parts=2, multicast="a")
    judged(p, config, shape, layout(p, shape, sizes))
