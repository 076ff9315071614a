"""On a Hopper GPU: rows of B by page, on trial and as an indexer's scores while it decodes; repeatable, in a graph, by others' names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels import LOGITS, PAGED

from gemmgen.config import Config
from gemmgen.epilogues import EPILOGUES, mqa_logits
from gemmgen.ir.dtypes import BF16, F32
from gemmgen.problem import Problem

pytestmark = pytest.mark.gpu

PLAIN = Problem(family="dense", a=BF16, b=BF16, d=F32, grouping="batched", paged=True)
SMALL = Config(swap_ab=True, block_m=64, block_n=128, stages=2)
KERNELS = {
    "batched, in a row": (replace(LOGITS, grouping="batched"), replace(SMALL, multicast="a")),
    "32 heads": (PAGED, SMALL),
    "64 heads, two waves": (
        replace(PAGED, epilogue=mqa_logits(64, from_first=True), d=BF16),
        replace(SMALL, block_n=256, stages=4, pdl=True),
    ),
    "in turns, a shared": (PAGED, replace(SMALL, ping_pong=True, block_n=64, multicast="a")),
    "promoted": (replace(PAGED, family="fp8"), SMALL),
    "bf16, two slabs": (PLAIN, Config(block_n=128, stages=2, swizzle_ab=64)),
    "bias, K divided": (replace(PLAIN, epilogue=EPILOGUES["bias"]), Config(stages=2, split_k=2)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_on_trial(name):
    from on_gpu import judged

    problem, config = KERNELS[name]
    rows = 64 if "64" in name else 32
    for shape in ((2 * rows, 201, 128), (4 * rows, 3000, 64), (rows, 1, 32), (rows, 300, 272)):
        judged(problem, config, shape)


@pytest.mark.parametrize("queries", [1, 2, 3])
@pytest.mark.parametrize(("heads", "depth"), [(64, 128), (32, 64), (32, 32)])
def test_scores_by_every_config(heads, depth, queries):
    """Against float64, with the bits of the chosen config, and of keys that lie in a row."""
    import torch

    from gemmgen import ops
    from gemmgen.bench import paged_logits as bench

    shape = bench.Shape(sequences=20, queries=queries, mean=2000, heads=heads, depth=depth)
    x = bench.drawn(shape)
    calls = bench.calls_of(x)
    assert len(calls) > 5
    bench.verify(x, calls)
    kv, scale = ops.paged_cache(x.cache)
    got = calls[bench.CHOSEN]()
    for s in range(len(x.q)):
        pages = x.table[s][x.table[s] >= 0].long()
        keys, scales = kv[pages].flatten(0, 1), scale[pages].flatten()
        end = x.lengths[s].contiguous()
        row = ops.fp8_mqa_logits(x.q[s], keys, scales, x.weights[s], torch.zeros_like(end), end)
        columns = min(row.shape[1], x.longest)
        assert torch.equal(row[:, :columns], got[s, :, :columns])


def test_twenty_calls_and_a_graph():
    import torch

    from gemmgen import ops
    from gemmgen.bench import paged_logits as bench

    x = bench.drawn(bench.Shape(sequences=64, queries=2, mean=8192, heads=64, depth=128))
    given = (x.q, *ops.paged_cache(x.cache), x.weights, x.lengths, x.table, x.longest)
    out = ops.fp8_paged_mqa_logits(*given)
    bits = out.view(torch.int32).clone()
    for _ in range(20):
        assert torch.equal(ops.fp8_paged_mqa_logits(*given, out).view(torch.int32), bits)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.fp8_paged_mqa_logits(*given, out)
    out.zero_()
    graph.replay()
    assert torch.equal(out.view(torch.int32), bits)
    x.lengths.zero_()  # contexts are read on the device, and numbers of pages
    x.table.fill_(-1)
    graph.replay()
    assert torch.isneginf(out).all()


def test_as_deep_gemm_and_as_an_operator():
    import torch

    import gemmgen.torch_ops  # noqa: F401
    from gemmgen import ops
    from gemmgen.bench import paged_logits as bench
    from gemmgen.compat import deep_gemm

    x = bench.drawn(bench.Shape(sequences=16, queries=2, mean=2048, heads=32, depth=128))
    given = (x.q, *ops.paged_cache(x.cache), x.weights, x.lengths, x.table, x.longest)
    want = ops.fp8_paged_mqa_logits(*given)
    meta = deep_gemm.get_paged_mqa_logits_metadata(x.lengths, 64, 132)
    flat = x.weights.flatten(0, 1)
    got = deep_gemm.fp8_paged_mqa_logits(x.q, x.cache, flat, x.lengths, x.table, meta, x.longest)
    assert torch.equal(got, want.flatten(0, 1))
    called = torch.compile(lambda *t: torch.ops.gemmgen.fp8_paged_mqa_logits(*t) * 2.0)
    assert torch.equal(called(*given), want * 2.0)
    none = (x.q[:0], *given[1:3], x.weights[:0], x.lengths[:0], x.table[:0], x.longest)
    assert ops.fp8_paged_mqa_logits(*none).shape == (0, 2, x.longest)
