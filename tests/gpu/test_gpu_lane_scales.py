"""On a Hopper GPU: A's block scales that the consumers' lanes read, in either layout, and the launches of a call."""

from __future__ import annotations

import pytest
from grouped import problem
from kernels import FP8, GROUPED, INT8_BLOCK
from on_gpu import SHAPES, judged_at_tails, judged_in_groups, judged_in_one_way, legal, same_bits

from gemmgen.config import Config

pytestmark = pytest.mark.gpu

WAYS = {
    "128x128": Config(stages=5, unroll=4),
    "256x128": Config(block_m=256, stages=3, multicast="a", peek=True),
    "192x128": Config(block_m=192, consumers=3, multicast="a", unroll=4),
    "128x144": Config(block_n=144, stages=5),
    "64x64": Config(block_m=64, block_n=64, consumers=1, stages=8),
    "in parts": Config(parts=2, in_flight=1),
    "in turns": Config(block_m=64, block_n=64, ping_pong=True),
    "split K": Config(block_m=64, block_n=32, consumers=1, split_k=4, stages=5),
    "in stretches": Config(block_m=64, block_n=64, consumers=1, stream=True),
    "exchanged": Config(swap_ab=True, block_m=16, block_n=128, stages=6, unroll=4),
    "exchanged, split K": Config(swap_ab=True, block_m=32, block_n=128, stages=5, split_k=2),
    "exchanged, in stretches": Config(swap_ab=True, block_m=64, block_n=128, stream=True),
}


def reading(way: str) -> Config:
    return WAYS[way].having(lane_scales=True)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_shapes(shape):
    judged_in_one_way(FP8, map(reading, WAYS), shape, sum(shape))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("p", (FP8, INT8_BLOCK), ids=lambda p: p.a.name)
def test_ways(p, way):
    config = legal(p, reading(way))
    if config is None:
        pytest.skip("not legal")
    judged_at_tails(p, config)


@pytest.mark.parametrize("grouping", GROUPED)
@pytest.mark.parametrize("way", ("64x64", "exchanged", "split K"))
def test_groups(grouping, way):
    p = problem("fp8_block", grouping)
    config = legal(p, reading(way))
    if config is None:
        pytest.skip("not legal")
    judged_in_groups(p, config)


@pytest.mark.parametrize("way", WAYS)
def test_it_changes_no_bit(way):
    assert same_bits(FP8, (4096, 2112, 7168), (reading(way), WAYS[way]), 3)


def operands(torch, m, n, k, groups=()):
    """FP8 operands, and scales row by row in a wider tensor."""
    a = torch.randn(*groups, m, k, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(*groups, n, k, device="cuda").to(torch.float8_e4m3fn)
    blocks = -(-k // 128)
    scale_a = torch.rand(*groups, m, blocks + 3, device="cuda")[..., :blocks]
    return a, scale_a, b, torch.rand(*groups, -(-n // 128), blocks, device="cuda")


def launched(torch, call) -> list[str]:
    """The names of the kernels that `call` launches the second time."""
    call()
    torch.cuda.synchronize()
    activity = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity]) as profile:
        call()
        torch.cuda.synchronize()
    kind = torch.autograd.DeviceType.CUDA
    return [e.name for e in profile.events() if e.device_type == kind]


@pytest.mark.parametrize("m", (1, 16, 83, 512))
@pytest.mark.parametrize("k", (512, 2048, 2000, 7168))
def test_one_launch_and_the_bits_of_a_copy(m, k):
    """Also where K / 128 is no multiple of 4, and strides none of 16 bytes."""
    import torch

    from gemmgen import ops

    a, scale_a, b, scale_b = operands(torch, m, 576, k)
    columns = torch.empty(scale_a.shape[1], -(-m // 4) * 4, device="cuda")[:, :m].mT
    columns.copy_(scale_a)
    found = ops.fp8_block_gemm(a, scale_a, b, scale_b, scale_a_layout="row")
    wanted = ops.fp8_block_gemm(a, columns, b, scale_b, scale_a_layout="mn")
    assert torch.equal(found, wanted)
    names = launched(
        torch, lambda: ops.fp8_block_gemm(a, scale_a, b, scale_b, found, scale_a_layout="row")
    )
    assert len(names) == 1 and names[0].startswith("gemmgen_fp8_block")


@pytest.mark.parametrize("layout", ("row", "mn"))
def test_groups_in_either_layout(layout):
    import torch

    from gemmgen import ops

    a, scale_a, b, scale_b = operands(torch, 132, 384, 1200, (3,))
    if layout == "mn":
        scale_a = scale_a.mT.contiguous().mT
    rows = torch.tensor([0, 5, 132], dtype=torch.int32, device="cuda")
    for config in (reading("64x64"), reading("exchanged")):
        plain = config.having(lane_scales=False)
        batched, masked = (
            [
                function(a, scale_a, b, scale_b, *table, scale_a_layout=layout, config=c)
                for c in (config, plain)
            ]
            for function, table in (
                (ops.fp8_block_batched_gemm, ()),
                (ops.fp8_block_masked_gemm, (rows,)),
            )
        )
        assert torch.equal(*batched)
        assert all(
            torch.equal(masked[0][g, :r], masked[1][g, :r]) for g, r in enumerate((0, 5, 132))
        )
