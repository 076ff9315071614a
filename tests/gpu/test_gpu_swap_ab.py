"""On a Hopper GPU: tiles that exchange A and B, bit for bit where the result is exact."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from grouped import PROBLEMS, layout, problem
from kernels import DENSE_NN, DENSE_TN, DENSE_TT, GROUPED
from on_gpu import judged, legal, same_bits

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.heuristics import choose, rank
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.target import H200

pytestmark = pytest.mark.gpu

BY_ROWS = tuple(g for g in GROUPED if not GROUPINGS[g].depths)
SIDES_M = (1, 3, 8, 13, 16, 33, 40, 64, 130)
SIDES_NK = (
    *((8, 128), (24, 16), (100, 96), (129, 200), (576, 256), (2112, 384), (261, 1000)),
    *((1024, 7168), (4095, 520), (7168, 2048), (24576, 1536), (32768, 512)),
)
SHAPES = tuple((m, n, k) for m, (n, k) in itertools.product(SIDES_M, SIDES_NK))
TILES = (
    (8, 64, 1),
    (16, 128, 2),
    (24, 128, 1),
    (32, 256, 2),
    (48, 192, 1),
    (64, 128, 2),
    (40, 64, 1),
)


def tile(block_m: int, block_n: int, consumers: int, **changes) -> Config:
    return Config(
        **{
            "swap_ab": True,
            "block_m": block_m,
            "block_n": block_n,
            "consumers": consumers,
            **changes,
        }
    )


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", ["fp8_block", "bf16"])
def test_best_swapped_config(name, shape):
    """The one the cost model would take if it had to exchange A and B, and the one it takes."""
    p = problem(name, "none")
    swapped = [c.config for c in rank(p, shape, H200) if c.config.swap_ab][:1]
    for config in {*swapped, choose(p, shape, H200), tile(*TILES[sum(shape) % 3])}:
        judged(p, config, shape, pad=shape[0] % 3, seed=shape[0])


@pytest.mark.parametrize("block", TILES, ids=lambda t: "x".join(map(str, t)))
@pytest.mark.parametrize("name", PROBLEMS)
def test_tiles(name, block):
    """Every dtype, every way to share a tile out, with and without multicast, D's swizzles."""
    p = problem(name, "none")
    for i, (multicast, swizzle_d) in enumerate(
        itertools.product(("none", "a", "b"), (None, 0, 32, 64))
    ):
        config = tile(
            *block, stages=2, multicast=multicast, swizzle_d=swizzle_d, unroll=1 + 3 * (i % 2)
        )
        if legal(p, config):
            judged(p, config, ((37, 261, 272), (130, 520, 100), (5, 1000, 640))[i % 3], pad=i % 2)


@pytest.mark.parametrize("p", [DENSE_NN, DENSE_TN, DENSE_TT], ids=lambda p: p.layout)
@pytest.mark.parametrize("multicast", ["none", "a", "b"])
def test_layouts(p, multicast):
    for i, block in enumerate(TILES):
        config = tile(*block, stages=2, multicast=multicast, in_flight=i % 2)
        if legal(p, config):
            judged(p, config, (33, 520, 200), pad=i % 3)


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("name", ["fp8_block", "fp8_block_f32", "f16_f32"])
def test_epilogues(name, epilogue):
    p = replace(problem(name, "none"), epilogue=EPILOGUES[epilogue])
    for i, block in enumerate(TILES):
        config = tile(*block, stages=2)
        if legal(p, config):
            judged(p, config, ((37, 261, 272), (8, 129, 130))[i % 2], pad=i % 2)


@pytest.mark.parametrize("grouping", ["none", "masked"])
def test_adding_to_d(grouping):
    p = replace(problem("fp8_1d1d", grouping), accumulate=True)
    for block in TILES:
        judged(
            p, tile(*block, stages=2), (60, 261, 400), layout(p, (60, 261, 400), (9, 60, 0)), pad=1
        )


SIZES = ((1, 0, 3, 17), (16, 5, 0, 33, 8), (70, 1, 64), (7,) * 32, (0, 130, 41))


@pytest.mark.parametrize("multicast", ["none", "a", "b"])
@pytest.mark.parametrize("grouping", BY_ROWS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_groups(name, grouping, multicast):
    p = problem(name, grouping)
    for i, (sizes, block) in enumerate(itertools.product(SIZES, TILES)):
        config = tile(*block, stages=2, multicast=multicast)
        if (i + len(multicast)) % 2 or not legal(p, config):
            continue
        rows = max(sizes) if GROUPINGS[grouping].rows else sum(-(-s // 128) * 128 for s in sizes)
        shape = rows, (136, 261, 1024)[i % 3], (200, 400, 128)[i % 3]
        judged(p, config, shape, layout(p, shape, sizes), pad=i % 3, seed=i)


@pytest.mark.parametrize("name", ["fp8_block", "bf16", "fp8_1d1d"])
def test_the_exchange_changes_no_bit(name):
    """On random data: the tensor core adds the same products in the same order."""
    p = problem(name, "none")
    configs = Config(stages=2), tile(16, 128, 2, stages=2), tile(64, 64, 1, stages=2)
    for shape in ((50, 200, 700), (16, 7168, 2048), (64, 576, 7168)):
        assert same_bits(p, shape, configs, 4)


EXPERTS = replace(problem("fp8_block", "ends"), d=E4M3, epilogue=EPILOGUES["swiglu"])
PAIRED = replace(problem("bf16", "none"), epilogue=EPILOGUES["geglu"])


@pytest.mark.parametrize("rows", (8, 16, 40, 64))
def test_experts(rows):
    """Pairs of columns and scales of D, in groups that end inside tiles, one without rows; the first by index, too."""
    for p, split_k in itertools.product((EXPERTS, replace(EXPERTS, indexed=True)), (1, 2)):
        shape = (640, 1056, 1024)
        groups = layout(p, shape, (rows, 0, 3, 70))
        judged(p, tile(rows, 256, 1, stages=3, split_k=split_k), shape, groups)


@pytest.mark.parametrize("m", (1, 9, 64))
def test_pairs(m):
    for block_n, consumers in ((64, 1), (128, 2), (256, 2)):
        judged(PAIRED, tile(16, block_n, consumers), (m, 1040, 520), pad=m % 3)


def test_pairs_and_scales_have_the_bits_of_other_tiles():
    p = replace(EXPERTS, grouping="none")
    plain = Config(block_m=64, block_n=256, consumers=1, parts=2, stages=4)
    assert same_bits(p, (40, 1056, 1024), (tile(24, 256, 1, stages=4), plain), 1)
