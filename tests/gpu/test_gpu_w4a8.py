"""On a Hopper GPU: FP8 by MXFP4 against float64, the same bits again, compiled, in a CUDA graph, and of experts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from four_bits import exact  # noqa: E402
from roundings import check_fast_sums  # noqa: E402

from gemmgen import formats, ops, quant  # noqa: E402

pytestmark = pytest.mark.gpu

FP8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def packed(*shape):
    weights = quant.of(torch.randn(*shape) / shape[-1] ** 0.5, formats.MXFP4)
    return quant.pack(weights, FP8).to("cuda")


def activations(*shape):
    return ops.quantise_rows(torch.randn(*shape, device="cuda"), block=None)


def check(got, a, scale, b):
    """a, scale: of the rows of `got`; b: float64 [N, K]."""
    want = a.double() * scale.double()[:, None] @ b.mT
    check_fast_sums(got, want, a.shape[-1])


@pytest.mark.parametrize("dtype", ("bf16", "f32"))
@pytest.mark.parametrize("m", (1, 16, 33, 64, 128, 500, 2000))
@pytest.mark.parametrize(("n", "k"), ((4096, 4096), (200, 352)))
def test_one(m, n, k, dtype):
    b, (a, scale) = packed(n, k), activations(m, k)
    given = {"scale_a": scale, "scale_b": b.factors, "columns": n, "out_dtype": dtype}
    got = ops.w4a8_gemm(a, b.blocks, **given)
    check(got, a, scale, exact(b))
    assert torch.equal(ops.w4a8_gemm(a, b.blocks, **given), got)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.w4a8_gemm(a, b.blocks, **given)
    graph.replay()
    assert torch.equal(captured, got)


def test_compiled():
    b, (a, scale) = packed(512, 1024), activations(40, 1024)

    def product(a, scale):
        return torch.ops.gemmgen.w4a8_gemm(a, b.blocks, scale_a=scale, scale_b=b.factors)

    import gemmgen.torch_ops  # noqa: F401

    assert torch.equal(torch.compile(product, fullgraph=True)(a, scale), product(a, scale))


def test_experts():
    counts = [40, 0, 1, 200]
    b = packed(len(counts), 768, 512)
    firsts = [0, 128, 128, 256]
    ends = torch.tensor([40, 128, 129, 456], dtype=torch.int32, device="cuda")
    a, scale = activations(512, 512)
    got = ops.w4a8_grouped_gemm(a, b.blocks, scale_a=scale, scale_b=b.factors, group_ends=ends)
    for g, (first, count) in enumerate(zip(firsts, counts, strict=True)):
        some = slice(first, first + count)
        check(got[some], a[some], scale[some], exact(b)[g])
    a, scale = activations(len(counts), 256, 512)
    rows = torch.tensor(counts, dtype=torch.int32, device="cuda")
    got = ops.w4a8_masked_gemm(a, b.blocks, rows, scale_a=scale, scale_b=b.factors)
    for g, count in enumerate(counts):
        check(got[g, :count], a[g, :count], scale[g, :count], exact(b)[g])
