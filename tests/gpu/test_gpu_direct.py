"""On a Hopper GPU: operands that warps load straight into registers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grouped import problem
from kernels import DENSE, DENSE_F16, DENSE_F32, DIRECT, FP8
from on_gpu import judged, judged_in_groups, judged_in_one_way, same_bits

from gemmgen.config import Config
from gemmgen.ir.dtypes import E5M2

pytestmark = pytest.mark.gpu

WAYS = {
    "1": replace(DIRECT, stages=1, unroll=1),
    "2": DIRECT,
    "3": replace(DIRECT, stages=3, unroll=3),
    "4": replace(DIRECT, stages=4, unroll=4),
    "16 rows": replace(DIRECT, block_m=16),
    "split K": replace(DIRECT, block_m=16, split_k=8),
    "early": replace(DIRECT, pdl=True, split_k=2),
    "slots": replace(DIRECT, slots=True, stages=4, unroll=4),
    "slots, split K, early": replace(DIRECT, slots=True, stages=3, unroll=3, split_k=8, pdl=True),
}
PLAIN = replace(FP8, family="fp8")
PROBLEMS = (DENSE, DENSE_F16, DENSE_F32, PLAIN, replace(PLAIN, a=E5M2), FP8)
SHAPES = ((1, 4096, 7168), (7, 576, 7168), (16, 7168, 2048), (33, 2112, 1536), (64, 129, 16384))


# K is whole pieces of 16 bytes of FP8, too.
TAILS = (130, 522, 272), (1025, 1024, 384), (40, 1500, 1104)


def reading(p, way: str) -> Config:
    return WAYS[way].having(lane_scales=p.family == "fp8_block")


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("p", PROBLEMS, ids=lambda p: f"{p.family}-{p.a.name}-{p.d.name}")
def test_shapes(p, shape):
    judged_in_one_way(p, (reading(p, way) for way in WAYS), shape, sum(shape))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("p", PROBLEMS, ids=lambda p: f"{p.family}-{p.a.name}-{p.d.name}")
def test_ways(p, way):
    for i, shape in enumerate(TAILS):
        judged(p, reading(p, way), shape, pad=i, seed=i)


@pytest.mark.parametrize("grouping", ("batched", "masked", "rows", "ends"))
@pytest.mark.parametrize("way", ("2", "16 rows", "split K"))
@pytest.mark.parametrize("of", ("bf16", "fp8_block"))
def test_groups(of, grouping, way):
    p = problem(of, grouping)
    judged_in_groups(p, reading(p, way))


@pytest.mark.parametrize("split_k", (2, 4, 8))
def test_no_sum_is_that_of_the_next_tile(split_k):
    """Many tiles of few K blocks: senders are ahead of who adds, whose loads of shared memory wait behind those of operands."""
    import torch

    from gemmgen import ops

    a, b = (torch.randint(-1, 2, (n, 384), device="cuda").bfloat16() for n in (1025, 1024))
    want, out = a @ b.mT, torch.empty(1025, 1024, dtype=torch.bfloat16, device="cuda")
    for _ in range(100):
        ops.gemm(a, b, out=out.fill_(torch.nan), config=replace(DIRECT, split_k=split_k))
        assert torch.equal(out, want)


@pytest.mark.parametrize("p", (DENSE, FP8), ids=lambda p: p.family)
def test_how_many_blocks_are_held_changes_no_bit(p):
    ways = [reading(p, way) for way in ("1", "2", "3", "4", "16 rows")]
    assert same_bits(p, (16, 2112, 7168), ways, 3)
