"""On a Hopper GPU: the sum of a batch of GEMMs, each against the GEMM with the K of all; the same bits in every call."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from kernels import DENSE, DENSE_F32, DENSE_NN, DENSE_TN, DENSE_TT
from on_gpu import judged

from gemmgen.config import Config
from gemmgen.errors import ArgumentError
from gemmgen.heuristics import choose
from gemmgen.ir.dtypes import F16
from gemmgen.ir.groupings import Layout
from gemmgen.target import H200

pytestmark = pytest.mark.gpu

SUMMED, MIXED, TURNED, STRAIGHT = (
    replace(p, grouping="summed") for p in (DENSE, DENSE_NN, DENSE_TN, DENSE_TT)
)
ADDED = replace(DENSE_F32, grouping="summed", accumulate=True)
PROBLEMS = (SUMMED, ADDED, MIXED, TURNED, STRAIGHT, replace(SUMMED, a=F16, b=F16, d=F16))
# DeepGEMM's, and with tails of K, one batch, one K block for each of many.
SHAPES = (
    *((g, *sides) for g in (129, 4096) for sides in ((128, 384, 128), (256, 256, 256))),
    *((1, 300, 264, 520), (7, 136, 200, 72), (600, 64, 8, 8), (33, 1000, 1048, 200)),
)
SMALL = Config(block_m=64, block_n=64, consumers=1, stages=4)
WAYS = {
    "alone": SMALL,
    "cluster": replace(SMALL, split_k=8, in_flight=1),
    "streamed": replace(SMALL, stream=True, in_flight=1),
    "in turn": replace(SMALL, shares=4),
    "slices": replace(SMALL, consumers=2, slice_k=True),
    "shared": Config(block_n=64, multicast="b", stages=4),
    "swapped": Config(swap_ab=True, block_m=64, block_n=64, consumers=1, stages=4, stream=True),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_chosen(shape):
    groups, *sides = shape
    for i, p in enumerate(PROBLEMS if groups < 4096 else PROBLEMS[:2]):
        c = choose(p, tuple(sides), H200, groups)
        judged(p, c, tuple(sides), Layout(groups=groups), pad=i % 3, seed=i)


@pytest.mark.parametrize("name", WAYS)
def test_ways_to_divide_the_sum(name):
    random = Random(name)
    for i in range(12):
        p = PROBLEMS[i % len(PROBLEMS)]
        step = 1 if p.layout == "tn" else 8
        sides = 8 * random.randint(1, 40), 8 * random.randint(1, 40), step * random.randint(1, 40)
        judged(p, WAYS[name], sides, Layout(groups=random.randint(1, 200)), pad=i % 3, seed=i)


@pytest.mark.parametrize("batch", (129, 4096, 8192))
@pytest.mark.parametrize("sides", ((128, 384, 128), (256, 256, 256), (384, 128, 384)), ids=str)
def test_the_bits_of_every_call_are_the_same(batch, sides):
    import torch

    from gemmgen import ops
    from gemmgen.compat.deep_gemm.testing import calc_diff

    m, n, k = sides
    a, b = (torch.randn(batch, x, k, device="cuda", dtype=torch.bfloat16) for x in (m, n))
    first = ops.summed_gemm(a, b, out_dtype="f32")
    for _ in range(50):
        assert torch.equal(ops.summed_gemm(a, b, out_dtype="f32"), first)
    want = torch.zeros(m, n, device="cuda", dtype=torch.float64)
    for i in range(0, batch, 64):
        want += (a[i : i + 64].double() @ b[i : i + 64].double().mT).sum(0)
    assert calc_diff(first, want) < 1e-5  # as DeepGEMM's own test of this sum asks


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@pytest.mark.parametrize("layout", ("nt", "nn", "tn", "tt"))
@pytest.mark.parametrize("added", ("nothing", "c", "out"))
def test_the_function(layout, dtype, added):
    import torch

    from gemmgen import ops

    groups, m, n, k = 37, 72, 200, 104
    kind = getattr(torch, dtype)
    x, y = (torch.randint(-1, 2, (groups, side, k), device="cuda").to(kind) for side in (m, n))
    a = x.mT.contiguous() if layout[0] == "t" else x
    b = y.mT.contiguous() if layout[1] == "n" else y
    for name in ("f32", {"bfloat16": "bf16", "float16": "f16"}[dtype]):
        of = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[name]
        more = torch.randint(-2, 3, (m, n), device="cuda").to(of)
        out = (
            more.clone()
            if added == "out"
            else torch.full((m, n), float("nan"), device="cuda").to(of)
        )
        want = (x.double() @ y.double().mT).sum(0) + (0 if added == "nothing" else more.double())
        c = {"nothing": None, "c": more, "out": out}[added]
        assert ops.summed_gemm(a, b, out, c=c, layout=layout, out_dtype=name) is out
        assert torch.equal(out, want.to(of))


def test_nothing_to_sum():
    import torch

    from gemmgen import ops

    a, b = (torch.empty(0, x, 64, device="cuda", dtype=torch.bfloat16) for x in (40, 24))
    assert torch.equal(ops.summed_gemm(a, b), torch.zeros(40, 24, device="cuda").bfloat16())
    c = torch.randn(40, 24, device="cuda")
    assert torch.equal(ops.summed_gemm(a, b, c=c, out_dtype="f32"), c)
    with pytest.raises(ArgumentError, match="a groups"):
        big = torch.empty(1, 8, 64, device="cuda", dtype=torch.bfloat16).expand(1 << 26, 8, 64)
        ops.summed_gemm(big, big)


def test_a_graph_replays_it():
    import torch

    from gemmgen import ops

    a, b = (torch.randn(500, x, 72, device="cuda", dtype=torch.bfloat16) for x in (64, 136))
    out = torch.empty(64, 136, device="cuda")
    ops.summed_gemm(a, b, out, out_dtype="f32")
    want, graph = out.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.summed_gemm(a, b, out, out_dtype="f32")
    out.zero_()
    graph.replay()
    assert torch.equal(out, want)
