"""On a Hopper GPU: CTAs that take equal stretches of all tiles' K blocks, bit for bit where the result is exact, and alike every time."""

from __future__ import annotations

import itertools

import pytest
from grouped import problem
from on_gpu import judged

from gemmgen.config import Config

pytestmark = pytest.mark.gpu

FEW = Config(swap_ab=True, block_m=16, block_n=64, consumers=1, stages=12, stream=True)
CONFIGS = {
    "few": FEW,
    "wide": Config(swap_ab=True, block_m=32, block_n=128, stages=6, stream=True),
    "square": Config(block_m=64, block_n=64, consumers=1, stages=4, stream=True),
    "overlapping": Config(
        swap_ab=True, block_m=16, block_n=64, consumers=1, stages=12, stream=True, pdl=True
    ),
}
# One K block in all, fewer than SMs, one tile for all SMs, tails, the shapes it is for, many tiles per CTA.
SIDES_NK = (
    *((8, 128), (24, 16), (64, 16384), (100, 512), (129, 1000), (576, 7168), (2112, 7168)),
    *((4096, 7168), (7168, 2048), (24576, 1536), (7168, 16384), (4095, 520)),
)
SHAPES = tuple((m, n, k) for m, (n, k) in itertools.product((1, 16, 33), SIDES_NK))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", ["fp8_block", "bf16"])
def test_sums_that_lie_in_several_ctas(name, config, shape):
    judged(problem(name, "none"), CONFIGS[config], shape)
