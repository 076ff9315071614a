"""On a Hopper GPU: sums of rows in windows, on trial and as an indexer's scores; repeatable, and in a graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels import LOGITS

from gemmgen.config import Config
from gemmgen.epilogues import mqa_logits
from gemmgen.ir.dtypes import BF16, S8

pytestmark = pytest.mark.gpu

SMALL = Config(swap_ab=True, block_m=64, block_n=128, stages=2)
KERNELS = {
    "f32": (LOGITS, SMALL),
    "64 heads, two waves": (
        replace(LOGITS, epilogue=mqa_logits(64)),
        replace(SMALL, block_m=128, block_n=256, multicast="b", stages=4),
    ),
    "bf16, 32 of K": (
        replace(LOGITS, d=BF16),
        replace(SMALL, block_m=32, block_n=64, block_k_bytes=32, consumers=1, pdl=True),
    ),
    "in turns, a shared": (LOGITS, replace(SMALL, ping_pong=True, block_n=64, multicast="a")),
    "promoted": (replace(LOGITS, family="fp8"), SMALL),
    "scales of blocks": (replace(LOGITS, family="fp8_block"), SMALL),
    "int8": (replace(LOGITS, a=S8, b=S8), SMALL),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_on_trial(name):
    from on_gpu import judged

    problem, config = KERNELS[name]
    rows = 64 if "64" in name else 32
    for shape in ((5 * rows, 201, 128), (40 * rows, 3000, 64), (rows, 1, 32), (3 * rows, 300, 272)):
        judged(problem, config, shape)


@pytest.mark.parametrize("windows", ["full", "causal", "parallel"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("heads", "depth"), [(64, 128), (32, 64), (32, 32)])
def test_scores_by_every_config(heads, depth, dtype, windows):
    """Against float64, with the bits of the chosen config."""
    from gemmgen.bench import logits

    given, _ = logits.drawn(256, 2048, heads, depth, windows)
    calls = logits._calls(given, dtype)
    assert len(calls) > 5
    logits._verify(given, calls, dtype)


def test_twenty_calls_and_a_graph():
    import torch

    from gemmgen import ops
    from gemmgen.bench import logits

    given, _ = logits.drawn(512, 8192, 64, 128, "parallel")
    out = ops.fp8_mqa_logits(*given)
    bits = out.view(torch.int32).clone()
    for _ in range(20):
        assert torch.equal(ops.fp8_mqa_logits(*given, out).view(torch.int32), bits)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.fp8_mqa_logits(*given, out)
    out.zero_()
    graph.replay()
    assert torch.equal(out.view(torch.int32), bits)
    given[5].zero_()  # windows are read on the device
    graph.replay()
    assert torch.isneginf(out).all()


def test_as_deep_gemm_and_as_an_operator():
    import torch

    import gemmgen.torch_ops  # noqa: F401
    from gemmgen import ops
    from gemmgen.bench import logits
    from gemmgen.compat import deep_gemm

    (q, kv, scale, weights, first, end), _ = logits.drawn(256, 4096, 32, 128, "causal")
    want = ops.fp8_mqa_logits(q, kv, scale, weights, first, end)
    assert torch.equal(deep_gemm.fp8_mqa_logits(q, (kv, scale), weights, first, end), want)
    called = torch.compile(lambda *x: torch.ops.gemmgen.fp8_mqa_logits(*x) * 2.0)
    assert torch.equal(called(q, kv, scale, weights, first, end), want * 2.0)
    assert ops.fp8_mqa_logits(q[:0], kv, scale, weights[:0], first[:0], end[:0]).shape == (0, 4096)
