"""On a Hopper GPU: sums of squares beside a product, on trial, as operators and as DeepGEMM's function."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels import SQUARES, SQUARES_PAIRED

from gemmgen.config import Config
from gemmgen.ir.dtypes import F16

pytestmark = pytest.mark.gpu

ONE = {"block_m": 64, "consumers": 1, "stages": 8}
KERNELS = {
    "one row of B": (SQUARES, Config(**ONE, block_n=32)),
    "pairs": (SQUARES_PAIRED, Config(**ONE, block_n=64)),
    "narrow tiles, K divided": (SQUARES_PAIRED, Config(**ONE, block_n=16, split_k=8, in_flight=1)),
    "K in stretches": (SQUARES_PAIRED, Config(**ONE, block_n=64, stream=True)),
    "two waves": (SQUARES_PAIRED, Config(block_m=256, consumers=2, block_n=64, stages=4)),
    "A shared": (SQUARES_PAIRED, Config(**ONE, block_n=32, multicast="a", in_flight=1)),
    "B shared": (SQUARES_PAIRED, Config(**ONE, block_n=64, multicast="b", unroll=4)),
    "by turns": (
        SQUARES_PAIRED,
        Config(block_m=64, consumers=2, ping_pong=True, block_n=64, stages=8),
    ),
    "rows padded": (SQUARES_PAIRED, Config(**ONE, block_n=64, swizzle_d=0)),
    "f16": (replace(SQUARES_PAIRED, a=F16, b=F16), Config(**ONE, block_n=64)),
    "several": (replace(SQUARES_PAIRED, grouping="batched"), Config(**ONE, block_n=64)),
    "early": (SQUARES_PAIRED, Config(**ONE, block_n=64, pdl=True)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_on_trial(name):
    from on_gpu import judged

    problem, config = KERNELS[name]
    columns = 25 if problem.epilogue == SQUARES.epilogue else 50
    for shape in (
        (1, columns, 128),
        (300, columns, 520),
        (1000, 8 * columns + columns // 25 * 9, 256),
    ):
        m, n, k = shape
        n -= (n // (columns // 25) - 1) % 4 * (columns // 25)
        judged(problem, config, (m, n, k))


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("depth", [75, 7168])
def test_pairs_are_those_of_torch(depth, tf32):
    import torch

    from gemmgen import ops
    from gemmgen.ops import pairing

    torch.manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (24, depth), dtype=torch.int32, device="cuda")
    w = bits.view(torch.float32)
    found, want = ops.paired(w, squares=True, tf32=tf32), pairing.by_torch(w, True, tf32)
    assert torch.equal(found.isnan(), want.isnan())
    assert torch.equal(found.nan_to_num(7), want.nan_to_num(7))


@pytest.mark.parametrize("m", [1, 13, 137, 4096])
@pytest.mark.parametrize("k", [7168, 28672])
def test_prenorm(m, k):
    """As near to float64 as FP32 sums are, with the same bits in every call, captured in a graph."""
    import torch

    from gemmgen import ops
    from gemmgen.compat.deep_gemm.testing import calc_diff

    torch.manual_seed(0)
    a = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
    w = torch.randn(24, k, device="cuda")
    pairs = ops.paired(w, squares=True)
    d, squares = ops.prenorm_gemm(a, pairs)
    assert calc_diff(d.double(), a.double() @ w.double().T) < 1e-9
    assert calc_diff(squares.double(), a.double().square().sum(1)) < 1e-10
    graph, again = torch.cuda.CUDAGraph(), (torch.empty(m, 24, device="cuda"), squares.clone())
    ops.prenorm_gemm(a, pairs, *again)
    with torch.cuda.graph(graph):
        ops.prenorm_gemm(a, pairs, *again)
    for _ in range(50):
        again[0].zero_()
        again[1].zero_()
        graph.replay()
        assert torch.equal(again[0], d) and torch.equal(again[1], squares)


@pytest.mark.parametrize("splits", [None, 1, 16])
@pytest.mark.parametrize(("n", "k"), [(24, 28672), (24, 7680), (24, 7168), (32, 7232)])
@pytest.mark.parametrize("m", [13, 137, 4096, 8192])
def test_by_deep_gemms_criterion(m, n, k, splits):
    """Its own test, against products of torch in TF32."""
    import torch

    from gemmgen.compat import deep_gemm
    from gemmgen.compat.deep_gemm.testing import calc_diff

    torch.manual_seed(0)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        a = torch.randn((m, k), dtype=torch.bfloat16, device="cuda")
        b = torch.randn((n, k), dtype=torch.float, device="cuda")
        lead = () if splits is None else (splits,)
        d, s = (
            torch.full((*lead, m, n), 7.0, device="cuda"),
            torch.full((*lead, m), 7.0, device="cuda"),
        )
        deep_gemm.tf32_hc_prenorm_gemm(a, b, d, s, num_splits=splits)
        final_d, final_s = (d, s) if splits is None else (d.sum(0), s.sum(0))
        diff = max(
            calc_diff(final_d, a.float() @ b.T), calc_diff(final_s, a.float().square().sum(-1))
        )
        assert diff < 1e-8
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
