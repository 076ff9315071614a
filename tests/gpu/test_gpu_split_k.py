"""On a Hopper GPU: CTAs that divide K, bit for bit where the result is exact, and alike every time."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from grouped import PROBLEMS, layout, problem
from kernels import DENSE_NN, DENSE_TN, DENSE_TT, GROUPED, QUANTISED
from on_gpu import judged, legal, machine, same_bits

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES
from gemmgen.ir.expr import fold
from gemmgen.ir.groupings import GROUPINGS
from gemmgen.pipeline import lower

pytestmark = pytest.mark.gpu

BY_ROWS = tuple(g for g in GROUPED if not GROUPINGS[g].depths)
SIDES_M = (1, 3, 8, 16, 33, 64, 100, 128, 300)
# Fewer K blocks than ranks, as many, one more; tails; the shapes it is for; many tiles per CTA.
SIDES_NK = (
    *((8, 128), (24, 16), (100, 512), (129, 1000), (576, 7168), (2112, 7168), (4096, 7168)),
    *((261, 1100), (64, 16384), (4095, 520), (24576, 1536), (136, 640)),
)
SHAPES = tuple((m, n, k) for m, (n, k) in itertools.product(SIDES_M, SIDES_NK))
# block_m, block_n, consumers, swap_ab
TILES = (
    (64, 32, 1, False),
    (64, 64, 1, False),
    (128, 64, 2, False),
    (128, 128, 2, False),
    (64, 128, 1, False),
    (256, 32, 2, False),
    (8, 64, 1, True),
    (16, 128, 2, True),
    (32, 64, 1, True),
    (64, 128, 2, True),
)


def tile(which, split_k: int, **changes) -> Config:
    block_m, block_n, consumers, swap_ab = which
    return Config(
        **{
            "block_m": block_m,
            "block_n": block_n,
            "consumers": consumers,
            "swap_ab": swap_ab,
            "split_k": split_k,
            "stages": 2,
            **changes,
        }
    )


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", ["fp8_block", "bf16"])
def test_shapes(name, shape):
    p, number = problem(name, "none"), SHAPES.index(shape)
    config = tile(TILES[number % len(TILES)], (2, 4, 8)[number % 3], stages=4)
    if not legal(p, config):
        config = replace(config, split_k=2, stages=2)
    judged(p, config, shape, pad=number % 3, seed=number)


@pytest.mark.parametrize("split_k", [2, 4, 8])
@pytest.mark.parametrize("name", PROBLEMS)
def test_tiles(name, split_k):
    """Every dtype and family, every way to share a tile out, one and several tiles per CTA."""
    p = problem(name, "none")
    for i, (which, unroll, swizzle_d) in enumerate(itertools.product(TILES, (1, 4), (None, 0))):
        config = tile(which, split_k, unroll=unroll, swizzle_d=swizzle_d)
        if legal(p, config):
            shape = ((37, 261, 1300), (130, 520, 100), (5, 1000, 2640))[i % 3]
            judged(p, config, shape, pad=i % 2, seed=i)


@pytest.mark.parametrize("unroll", [2, 3, 5, 6, 7, 8])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_unroll_of_a_divided_loop_ends(name, unroll):
    """With fewer K blocks than a trip takes, as many, and more."""
    p = problem(name, "none")
    config = tile(TILES[0], 2, unroll=unroll)
    if not legal(p, config):
        pytest.skip("not legal")
    k = lower(p, config).block.k
    for blocks in (1, 3, 2 * unroll, 2 * unroll + 1, 4 * unroll + 3):
        judged(p, config, (64, 64, blocks * k), seed=blocks)


@pytest.mark.parametrize("p", [DENSE_NN, DENSE_TN, DENSE_TT], ids=lambda p: p.layout)
@pytest.mark.parametrize("split_k", [2, 4, 8])
def test_layouts(p, split_k):
    for i, which in enumerate(TILES):
        config = tile(which, split_k, in_flight=i % 2)
        if legal(p, config):
            judged(p, config, (70, 520, 1100), pad=i % 3)


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("name", ["fp8_block", "fp8_block_f32", "f16_f32"])
def test_epilogues(name, epilogue):
    p = replace(problem(name, "none"), epilogue=EPILOGUES[epilogue])
    for i, which in enumerate(TILES):
        config = tile(which, (2, 4)[i % 2])
        if legal(p, config):
            n = -(-(261, 129)[i % 2] // fold(p.epilogue)) * fold(p.epilogue)
            judged(p, config, ((37, 8)[i % 2], n, (1300, 400)[i % 2]), pad=i % 2)


@pytest.mark.parametrize("epilogue", ["bias", "swiglu"])
def test_quantised_outputs(epilogue):
    p = replace(QUANTISED, epilogue=EPILOGUES[epilogue])
    for n, split_k in itertools.product((128, 256), (2, 4)):
        config = Config(block_m=64, block_n=n, consumers=1, split_k=split_k, stages=2)
        if legal(p, config):
            judged(p, config, (100, 1030, 2000), pad=1)


@pytest.mark.parametrize("grouping", ["none", "masked"])
def test_adding_to_d(grouping):
    p = replace(problem("fp8_1d1d", grouping), accumulate=True)
    for which in TILES:
        shape = 60, 261, 1400
        config = tile(which, 4)
        if legal(p, config):
            judged(p, config, shape, layout(p, shape, (9, 60, 0)), pad=1)


SIZES = ((1, 0, 3, 17), (16, 5, 0, 33, 8), (70, 1, 64), (7,) * 32, (0, 130, 41))


@pytest.mark.parametrize("split_k", [2, 4, 8])
@pytest.mark.parametrize("grouping", BY_ROWS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_groups(name, grouping, split_k):
    p = problem(name, grouping)
    for i, (sizes, which) in enumerate(itertools.product(SIZES, TILES)):
        config = tile(which, split_k)
        if (i + split_k) % 3 or not legal(p, config):
            continue
        rows = max(sizes) if GROUPINGS[grouping].rows else sum(-(-s // 128) * 128 for s in sizes)
        shape = rows, (136, 261, 1024)[i % 3], (200, 1400, 640)[i % 3]
        judged(p, config, shape, layout(p, shape, sizes), pad=i % 3, seed=i)


@pytest.mark.parametrize("split_k", [2, 4, 8])
@pytest.mark.parametrize("name", ["fp8_block", "bf16", "fp8_1d1d", "f16_f32"])
def test_repeated_launches_are_equal_bit_for_bit(name, split_k):
    """On random data, thirty times, with one tile per CTA and with many."""
    p, config = problem(name, "none"), tile((64, 32, 1, False), split_k, stages=4)
    for shape in ((16, 576, 7168), (64, 2112, 7168), (300, 4095, 1100)):
        assert same_bits(p, shape, (config,) * 30, 4)


@pytest.mark.parametrize("name", ["fp8_block", "bf16"])
def test_the_emulator_has_the_same_bits(name):
    """Random data: the order of the sums is the kernel's own, wherever it runs."""
    from gemmgen import ops
    from gemmgen.emit import emit
    from gemmgen.runtime.emulated import EmulatedGpu, prepare
    from gemmgen.verification.inputs import random_normal
    from gemmgen.verification.trial import output, pitches

    p, shape = problem(name, "none"), (70, 60, 1300)
    for which in ((64, 32, 1, False), (16, 128, 2, True)):
        program, kernel = ops.loaded(p, tile(which, 4), 0), lower(p, tile(which, 4))
        emulated = prepare(kernel, emit(kernel))
        strides, operands = pitches(program.kernel, shape), random_normal(p, *shape, 4)
        d = output(p, operands, strides)
        found = d.extract(machine().execute(program, operands, strides, d, 0xFF))
        wanted = d.extract(EmulatedGpu().execute(emulated, operands, strides, d, 0xFF))
        assert (found == wanted).all()
