"""GEMMs of FP8 and MXFP4: from a checkpoint's form to D, emulated, against the dequantised weights; and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

from emulated_ops import Memory, emulated, real_torch  # noqa: E402, F401
from four_bits import exact  # noqa: E402
from roundings import check_fast_sums  # noqa: E402

from gemmgen import Config, Problem, formats, ops, quant  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402

FP8 = torch.float8_e4m3fn


def packed(*shape):
    return quant.pack(quant.of(torch.randn(*shape), formats.MXFP4), FP8)


def activations(*shape):
    """Codes and a scale per row."""
    x = torch.randn(*shape)
    scale = x.abs().amax(-1) / 448
    return (x / scale[..., None]).to(FP8), scale


def exactly(a, scale, weights):
    """In float64."""
    return a.double() * scale.double()[..., None] @ exact(weights).mT


@pytest.mark.parametrize("dtype", ("bf16", "f16", "f32"))
@pytest.mark.parametrize(("m", "n", "k"), ((1, 64, 128), (17, 200, 384)))
def test_one(m, n, k, dtype, monkeypatch):
    b, (a, scale) = packed(n, k), activations(m, k)
    memory = Memory(a, scale, b.blocks, b.factors)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.w4a8_gemm(
            a, b.blocks, scale_a=scale, scale_b=b.factors, columns=n, out_dtype=dtype
        )
    check_fast_sums(got, exactly(a, scale, b), k)


def test_weights_are_those_of_a_product_with_16_bits():
    """The same numbers, where BF16 has them too."""
    weights = quant.of(torch.randn(64, 256), formats.MXFP4)
    of_fp8, of_bf16 = (quant.pack(weights, dtype) for dtype in (FP8, torch.bfloat16))
    assert torch.equal(exact(of_fp8), exact(of_bf16))


def test_every_exponent_that_a_row_may_span(monkeypatch):
    """Each group of a row has another, from the largest down to where 1/2 is the least normal number of E4M3."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(64, 12 * 2)
    exponents = torch.arange(127, 115, -1, dtype=torch.uint8).repeat(64, 1)
    pairs = codes[:, ::2] | codes[:, 1::2] << 4
    b = quant.pack(quant.Quantised(format=formats.MXFP4, codes=pairs, scales=exponents), FP8)
    a = torch.eye(384).to(FP8)
    memory = Memory(a, b.blocks, b.factors)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.w4a8_gemm(a, b.blocks, scale_b=b.factors, out_dtype="f32")
    assert torch.equal(got.double(), exact(b).T)


@pytest.mark.parametrize("grouping", ("batched", "masked", "row_groups", "group_ends"))
def test_experts(grouping, monkeypatch):
    experts, n, k = 3, 128, 256
    b = packed(experts, n, k)
    rows = torch.tensor([40, 0, 25], dtype=torch.int32)
    alone = grouping in ("batched", "masked")
    a, scale = activations(*((experts, 64, k) if alone else (384, k)))
    ids = torch.full((384,), -1, dtype=torch.int32)
    ids[:40], ids[256:281] = 0, 2
    ends = torch.tensor([40, 128, 153], dtype=torch.int32)
    said = {"scale_a": scale, "scale_b": b.factors, "columns": n}
    memory = Memory(a, scale, b.blocks, b.factors, rows, ids, ends)
    emulated(monkeypatch, memory)
    with memory:
        if grouping == "batched":
            got = ops.w4a8_batched_gemm(a, b.blocks, **said)
        elif grouping == "masked":
            got = ops.w4a8_masked_gemm(a, b.blocks, rows, expected_rows=25, **said)
        else:
            table = {"row_groups": ids} if grouping == "row_groups" else {"group_ends": ends}
            got = ops.w4a8_grouped_gemm(a, b.blocks, **table, **said)
    if alone:
        want = exactly(a, scale, b)
        for g, count in enumerate(rows if grouping == "masked" else (64,) * experts):
            check_fast_sums(got[g, :count], want[g, :count], k)
        return
    last = slice(256, 281) if grouping == "row_groups" else slice(128, 153)
    want = exactly(a.expand(experts, 384, k), scale.expand(experts, 384), b)
    for g, some in ((0, slice(0, 40)), (2, last)):
        check_fast_sums(got[some], want[g, some], k)


def test_an_epilogue_of_the_scaled_product_and_a_config(monkeypatch):
    b, (a, scale) = packed(130, 640), activations(40, 640)
    bias = torch.randn(130)
    config = Config(swap_ab=True, block_m=40, stages=3, in_flight=1, split_k=2)
    memory = Memory(a, scale, b.blocks, b.factors, bias)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.w4a8_gemm(
            a, b.blocks, scale_a=scale, scale_b=b.factors, columns=130, out_dtype="f32",
            config=config, epilogue="bias_relu", bias=bias,
        )  # fmt: skip
    check_fast_sums(got, (exactly(a, scale, b) + bias.double()).relu(), 640)


def test_multiply_takes_the_same(monkeypatch):
    b, a = packed(70, 128), activations(3, 128)[0]
    p = Problem(family="w4a8", a="e4m3", b="e4m3", weights=b.weights)
    memory = Memory(a, b.blocks)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.multiply(p, a, b.blocks, columns=70)
        assert torch.equal(got, ops.w4a8_gemm(a, b.blocks, columns=70))


GIVEN = {"a": torch.zeros(3, 128).to(FP8), "b": torch.zeros(2, 1, 4352, dtype=torch.uint8)}


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"a": torch.zeros(3, 128).bfloat16()}, "a dtype=torch.bfloat16: must be torch.float8_e4m3fn"),
        ({"weights": "int4_128_bf16"}, "weights='int4_128_bf16': must be one of e2m1_32_e8m0"),
        ({"b": torch.zeros(128, 128).to(FP8)}, "b dtype=torch.float8_e4m3fn: must be torch.uint8"),
        ({"columns": 64}, "columns=64: must be 65 to 128, or None"),
        ({"out_dtype": "e4m3"}, "out_dtype='e4m3': must be"),
    ),
)  # fmt: skip
def test_what_is_refused(changes, message, monkeypatch):
    given = GIVEN | changes
    memory = Memory(*(x for x in given.values() if isinstance(x, torch.Tensor)))
    emulated(monkeypatch, memory)
    with memory, pytest.raises(ArgumentError, match="^" + message):
        ops.w4a8_gemm(**given)


def test_a_row_that_spans_more_is_refused():
    scales = torch.tensor([[127, 127, 127, 115]], dtype=torch.uint8)
    codes = torch.full((1, 64), 0x22, dtype=torch.uint8)
    wide = quant.Quantised(format=formats.MXFP4, codes=codes, scales=scales)
    with pytest.raises(ArgumentError, match="must span at most 11 for e4m3"):
        quant.pack(wide, FP8)
    assert quant.pack(wide, torch.bfloat16).blocks.shape == (1, 1, 4352)
