"""On a Hopper GPU: D with gaps between heads' parts, on trial, with the bits of the product without, and as DeepGEMM's function."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels import DENSE, HEADS, VECTOR

from gemmgen.config import Config
from gemmgen.ir.dtypes import F16, F32

pytestmark = pytest.mark.gpu

KERNELS = {
    "plain": (HEADS, Config(stages=5)),
    "tiles over heads": (HEADS, Config(block_n=192, stages=4, multicast="b")),
    "narrow boxes": (replace(HEADS, heads=(16, 8, 48)), Config(block_n=96, stages=4)),
    "left alone": (replace(HEADS, heads=(96, 40, 0)), Config()),
    "swapped": (HEADS, Config(swap_ab=True, block_m=16, stages=6)),
    "in pieces, f32": (
        replace(DENSE, d=F32, heads=(64, 4, 96)),
        Config(block_m=256, block_n=64, stages=3, d_columns=32),
    ),
    "by turns, f16": (
        replace(VECTOR, d=F16, heads=(64, 8, 64)),
        Config(ping_pong=True, block_m=64, block_n=64),
    ),
    "K divided": (HEADS, Config(block_n=64, split_k=2, stages=3)),
    "early": (HEADS, Config(stages=4, pdl=True)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_on_trial(name):
    from on_gpu import judged

    problem, config = KERNELS[name]
    side = problem.gaps.side
    for shape in ((1, side, 128), (300, 5 * side, 520), (1000, 40 * side, 256)):
        judged(problem, config, shape)


@pytest.mark.parametrize("n", [32768, 8192])
@pytest.mark.parametrize("m", [64, 4096])
def test_as_deep_gemm(m, n):
    """The bits of the product where the order of the sum is the same, and else what two such sums may differ by."""
    import torch
    from mixtures import distance
    from roundings import of_fast_sums

    from gemmgen import ops
    from gemmgen.compat import deep_gemm

    torch.manual_seed(0)
    x, y = (torch.randn(rows, 512, device="cuda") for rows in (m, n))
    a, b = ops.quantise_rows(x), ops.quantise_blocks(y)
    d = torch.full((m, n // 256 * 320), 7.0, dtype=torch.bfloat16, device="cuda")
    deep_gemm.fp8_gemm_nt_skip_head_mid(a, b, d, (128, 64, 128))
    plain = ops.fp8_block_gemm(*a, *b, scale_a_layout="mn", invariant=True)
    heads = d.view(m, -1, 320)
    whole = torch.cat([heads[..., :128], heads[..., 192:]], 2).view(m, n)
    assert (heads[..., 128:192] == 7.0).all()
    same = ops.fp8_block_gemm(*a, *b, scale_a_layout="mn", invariant=True, heads=(128, 64, 128))
    same = same.view(m, -1, 320)
    assert torch.equal(torch.cat([same[..., :128], same[..., 192:]], 2).view(m, n), plain)
    assert distance(whole, plain.double()) < 2 * of_fast_sums(torch.bfloat16, 128)  # of K's blocks


def test_an_operator_in_a_graph():
    import torch

    import gemmgen.torch_ops  # noqa: F401
    from gemmgen import ops

    x, y = torch.randn(256, 512, device="cuda"), torch.randn(1024, 512, device="cuda")
    given = (*ops.quantise_rows(x), *ops.quantise_blocks(y))
    said = {"scale_a_layout": "mn", "heads": [128, 64, 128]}
    out = torch.zeros(256, 1280, dtype=torch.bfloat16, device="cuda")
    run = torch.ops.gemmgen.fp8_block_gemm.out
    run(*given, out=out, **said)
    want = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(*given, out=out, **said)
    out.fill_(0)
    graph.replay()
    assert torch.equal(out, want)
    called = torch.compile(lambda *x: torch.ops.gemmgen.fp8_block_gemm(*x, **said))
    found, wanted = (x.view(256, -1, 320) for x in (called(*given), want))
    for side in (slice(0, 128), slice(192, 320)):
        assert torch.equal(found[..., side], wanted[..., side])
