"""On a Hopper GPU: FP8 with a scale for each 128 of K by MXFP4 and INT4 against float64, the same bits again, compiled, in a CUDA graph, and of experts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from four_bits import exact  # noqa: E402
from roundings import check_fast_sums  # noqa: E402

from gemmgen import formats, ops, quant  # noqa: E402

pytestmark = pytest.mark.gpu

FP8 = torch.float8_e4m3fn
FORMS = pytest.mark.parametrize(
    "form", (formats.MXFP4, formats.int4(128, "bf16")), ids=lambda x: x.element
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def packed(form, *shape):
    weights = quant.of(torch.randn(*shape) / shape[-1] ** 0.5, form)
    return quant.pack(weights, FP8).to("cuda")


def activations(*shape):
    """Of sizes that differ by up to 2^16 between the scales of a row."""
    blocks = torch.randint(-8, 9, (-(-shape[-1] // 128),), device="cuda")
    loud = torch.exp2(blocks).repeat_interleave(128)[: shape[-1]]
    return ops.quantise_rows(torch.randn(*shape, device="cuda") * loud)


def check(got, a, scale, b):
    """a, scale: of the rows of `got`; b: float64 [N, K]. Sums of 128 are the tensor core's."""
    wide = scale.double().repeat_interleave(128, -1)[..., : a.shape[-1]]
    check_fast_sums(got, a.double() * wide @ b.mT, 128)


@FORMS
@pytest.mark.parametrize("dtype", ("bf16", "f32"))
@pytest.mark.parametrize("m", (1, 16, 33, 64, 128, 500, 2000))
@pytest.mark.parametrize(("n", "k"), ((4096, 4096), (200, 384)))
def test_one(m, n, k, dtype, form):
    b, (a, scale) = packed(form, n, k), activations(m, k)
    given = {"scale_a_layout": "mn", "scale_b": b.factors, "weights": b.weights}
    given |= {"columns": n, "out_dtype": dtype}
    got = ops.w4a8_block_gemm(a, scale, b.blocks, **given)
    check(got, a, scale, exact(b))
    assert torch.equal(ops.w4a8_block_gemm(a, scale, b.blocks, **given), got)
    rows = scale.contiguous()
    by_row = ops.w4a8_block_gemm(a, rows, b.blocks, **given | {"scale_a_layout": "row"})
    assert torch.equal(by_row, got)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.w4a8_block_gemm(a, scale, b.blocks, **given)
    graph.replay()
    assert torch.equal(captured, got)


@FORMS
def test_compiled(form):
    b, (a, scale) = packed(form, 512, 1024), activations(40, 1024)
    given = {"scale_a_layout": "mn", "scale_b": b.factors, "weights": b.weights}

    def product(a, scale):
        return torch.ops.gemmgen.w4a8_block_gemm(a, scale, b.blocks, **given)

    import gemmgen.torch_ops  # noqa: F401

    assert torch.equal(torch.compile(product, fullgraph=True)(a, scale), product(a, scale))


@FORMS
def test_experts(form):
    counts = [40, 0, 1, 200]
    b = packed(form, len(counts), 768, 512)
    firsts = [0, 128, 128, 256]
    ends = torch.tensor([40, 128, 129, 456], dtype=torch.int32, device="cuda")
    given = {"scale_a_layout": "mn", "scale_b": b.factors, "weights": b.weights}
    a, scale = activations(512, 512)
    got = ops.w4a8_block_grouped_gemm(a, scale, b.blocks, group_ends=ends, **given)
    for g, (first, count) in enumerate(zip(firsts, counts, strict=True)):
        some = slice(first, first + count)
        check(got[some], a[some], scale[some], exact(b)[g])
    a, scale = activations(len(counts), 256, 512)
    rows = torch.tensor(counts, dtype=torch.int32, device="cuda")
    got = ops.w4a8_block_masked_gemm(a, scale, b.blocks, rows, **given)
    for g, count in enumerate(counts):
        check(got[g, :count], a[g, :count], scale[g, :count], exact(b)[g])
