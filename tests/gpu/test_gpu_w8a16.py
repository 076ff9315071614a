"""On a Hopper GPU: 16 bits by INT8 and FP8 against float64, the same bits again, compiled, in a CUDA graph, of experts, and every code to the bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from four_bits import packed as packed_of  # noqa: E402
from roundings import UNIT  # noqa: E402

from gemmgen import formats, nn, ops, quant  # noqa: E402

pytestmark = pytest.mark.gpu

BF16, F16 = torch.bfloat16, torch.float16
FORMS = {
    "int8": (formats.INT8_ROWS, BF16),
    "int8 of fp16": (formats.INT8_ROWS, F16),
    "fp8": (formats.FP8_ROWS, BF16),
    "fp8 of fp16": (formats.FP8_ROWS, F16),
}
forms = pytest.mark.parametrize("name", FORMS)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def packed(name, *shape):
    return packed_of(*FORMS[name], *shape).to("cuda")


def activations(name, *shape):
    return torch.randn(*shape, device="cuda").to(FORMS[name][1])


def check(got, a, b):
    """b: float64 [N, K]. Rounded once, after a sum of size 1 in FP32 of which each step of 16 cuts off 2^-22."""
    want = a.double() @ b.mT
    unit = UNIT[got.dtype]
    off = (got.double() - want).abs()
    assert bool((off <= unit * want.abs() + a.shape[-1] / 16 * 2.0**-21).all())


def exact(b):
    return b.numbers().double() * b.factors.double()[..., None]


@forms
@pytest.mark.parametrize("dtype", (None, "f32"))
@pytest.mark.parametrize("m", (1, 16, 33, 64, 128, 500, 2000))
@pytest.mark.parametrize(("n", "k"), ((4096, 4096), (200, 352)))
def test_one(name, m, n, k, dtype):
    b, a = packed(name, n, k), activations(name, m, k)
    given = {"weights": b.weights, "scale_b": b.factors, "columns": n, "out_dtype": dtype}
    got = ops.w8a16_gemm(a, b.blocks, **given)
    check(got, a, exact(b))
    assert torch.equal(ops.w8a16_gemm(a, b.blocks, **given), got)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.w8a16_gemm(a, b.blocks, **given)
    graph.replay()
    assert torch.equal(captured, got)


@forms
def test_compiled(name):
    b, a = packed(name, 512, 1024), activations(name, 40, 1024)

    weights = b.weights

    def product(a):
        return torch.ops.gemmgen.w8a16_gemm(
            a, b.blocks, weights=weights, scale_b=b.factors, epilogue="gelu"
        )

    import gemmgen.torch_ops  # noqa: F401

    assert torch.equal(torch.compile(product, fullgraph=True)(a), product(a))


@forms
def test_experts(name):
    counts = [40, 0, 1, 200]
    b = packed(name, len(counts), 768, 512)
    said = {"weights": b.weights, "scale_b": b.factors}
    firsts = [0, 128, 128, 256]
    ends = torch.tensor([40, 128, 129, 456], dtype=torch.int32, device="cuda")
    a = activations(name, 512, 512)
    got = ops.w8a16_grouped_gemm(a, b.blocks, **said, group_ends=ends)
    for g, (first, count) in enumerate(zip(firsts, counts, strict=True)):
        some = slice(first, first + count)
        check(got[some], a[some], exact(b)[g])
    a = activations(name, len(counts), 256, 512)
    rows = torch.tensor(counts, dtype=torch.int32, device="cuda")
    got = ops.w8a16_masked_gemm(a, b.blocks, rows, **said)
    for g, count in enumerate(counts):
        check(got[g, :count], a[g, :count], exact(b)[g])
    got = ops.w8a16_batched_gemm(a, b.blocks, **said)
    for g in range(len(counts)):
        check(got[g], a[g], exact(b)[g])


@forms
def test_a_layer(name):
    form, dtype = FORMS[name]
    plain = torch.nn.Linear(1024, 768)
    layer = nn.Linear8bit.from_linear(plain, form, dtype).to("cuda")
    x = activations(name, 33, 1024)
    got = layer(x)
    given = {"weights": layer.weights, "scale_b": layer.factors, "columns": 768}
    said = {"epilogue": "bias", "bias": layer.bias}
    assert torch.equal(got, ops.w8a16_gemm(x, layer.blocks, **given, **said))


@forms
def test_every_code_is_the_same_on_a_gpu_and_on_a_cpu(name):
    form, dtype = FORMS[name]
    codes = torch.arange(256, dtype=torch.uint8).repeat(72, 1)
    codes = torch.stack([row.roll(i) for i, row in enumerate(codes)])
    if form == formats.FP8_ROWS:
        codes = torch.where((codes & 0x7F) == 0x7F, 0x80, codes)
    weights = quant.Quantised(format=form, codes=codes, scales=torch.ones(72, 1))
    packed = quant.pack(weights, dtype)
    there = packed.to("cuda").numbers()
    assert there.is_cuda and torch.equal(
        there.cpu().view(torch.int16), packed.numbers().view(torch.int16)
    )
