"""GEMMs of weights of 8 bits: from a tensor to D, emulated, and by operators on the CPU, against the dequantised weights; and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

from emulated_ops import Memory, computing_on_cpu, emulated, real_torch  # noqa: E402, F401
from four_bits import packed  # noqa: E402
from roundings import UNIT  # noqa: E402

import gemmgen.torch_ops  # noqa: E402, F401
from gemmgen import Config, Problem, formats, ops, quant  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402

BF16, F16 = torch.bfloat16, torch.float16
FORMS = {
    "int8": (formats.INT8_ROWS, BF16),
    "int8 of fp16": (formats.INT8_ROWS, F16),
    "fp8": (formats.FP8_ROWS, BF16),
    "fp8 of fp16": (formats.FP8_ROWS, F16),
}
SUMS = 2.0**-14  # of size 1, so of 4 at most, in FP32: each of 40 steps cuts off 2^-22 of that
forms = pytest.mark.parametrize("name", FORMS)


def weighed(b):
    """float64 [..., N, K]: what is multiplied, times what rows lack."""
    return b.numbers().double() * b.factors.double()[..., None]


def multiplied(a, b):
    return a.double() @ weighed(b).mT


def check(got, want, dtype):
    """Rounded once."""
    off = (got.double() - want).abs()
    assert bool((off <= UNIT[dtype] * want.abs() + SUMS).all())


@forms
def test_what_is_packed_is_what_was_quantised(name):
    """Exactly: nothing is rounded but by quantising."""
    form, dtype = FORMS[name]
    w = torch.randn(3, 70, 200) / 14
    quantised = quant.of(w, form)
    assert quantised.shape == (3, 70, 200) and quantised.codes.shape == (3, 70, 200)
    assert quantised.scales.shape == (3, 70, 1) and quantised.scales.dtype == torch.float32
    b = quant.pack(quantised, dtype)
    assert b.blocks.shape == (3, 2, 2, 8192) and b.factors.shape == (3, 70)
    assert b.weights == form.name + "_f16" * (dtype == F16)
    assert torch.equal(weighed(b), quantised.dequantise())
    near = 2.0**-7 if form == formats.INT8_ROWS else 2.0**-3
    assert (quantised.dequantise() - w).abs().max() < near * w.abs().max()


@forms
@pytest.mark.parametrize(("m", "n", "k"), ((1, 64, 128), (17, 200, 384)))
def test_one(name, m, n, k, monkeypatch):
    form, dtype = FORMS[name]
    b, a = packed(form, dtype, n, k), torch.randn(m, k).to(dtype)
    memory = Memory(a, b.blocks, b.factors)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.w8a16_gemm(a, b.blocks, weights=b.weights, scale_b=b.factors, columns=n)
    check(got, multiplied(a, b), dtype)


@pytest.mark.parametrize("how", ({"stream": True}, {"split_k": 2}, {"ping_pong": True}), ids=str)
@forms
def test_a_config_that_is_given(name, how, monkeypatch):
    """Three tiles of K blocks that do not divide evenly."""
    form, dtype = FORMS[name]
    b, a = packed(form, dtype, 300, 640), torch.randn(40, 640).to(dtype)
    config = Config(swap_ab=True, block_m=40, block_k_bytes=256, stages=3, in_flight=1, **how)
    given = {"weights": b.weights, "scale_b": b.factors, "columns": 300, "config": config}
    memory = Memory(a, b.blocks, b.factors)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.w8a16_gemm(a, b.blocks, **given)
    check(got, multiplied(a, b), dtype)


@forms
def test_an_epilogue_and_fp32(name, monkeypatch):
    form, dtype = FORMS[name]
    b, a, bias = packed(form, dtype, 128, 256), torch.randn(5, 256).to(dtype), torch.randn(128)
    given = {"weights": b.weights, "scale_b": b.factors, "out_dtype": "f32"}
    memory = Memory(a, b.blocks, b.factors, bias)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.w8a16_gemm(a, b.blocks, **given, epilogue="bias_relu", bias=bias)
    want = (multiplied(a, b) + bias.double()).relu()
    assert torch.allclose(got.double(), want, rtol=0, atol=SUMS)


@pytest.mark.parametrize("grouping", ("batched", "masked", "row_groups", "group_ends"))
@pytest.mark.parametrize("name", ("int8", "fp8 of fp16"))
def test_experts(name, grouping, monkeypatch):
    form, dtype = FORMS[name]
    experts, n, k = 3, 128, 256
    b = packed(form, dtype, experts, n, k)
    said = {"weights": b.weights, "scale_b": b.factors, "columns": n}
    rows = torch.tensor([40, 0, 25], dtype=torch.int32)
    alone = grouping in ("batched", "masked")
    a = torch.randn(*((experts, 64, k) if alone else (384, k))).to(dtype)
    ids = torch.full((384,), -1, dtype=torch.int32)
    ids[:40], ids[256:281] = 0, 2
    ends = torch.tensor([40, 128, 281 - 128], dtype=torch.int32)
    memory = Memory(a, b.blocks, b.factors, rows, ids, ends)
    emulated(monkeypatch, memory)
    with memory:
        if grouping == "batched":
            got = ops.w8a16_batched_gemm(a, b.blocks, **said)
            return check(got, multiplied(a, b), dtype)
        if grouping == "masked":
            got = ops.w8a16_masked_gemm(a, b.blocks, rows, expected_rows=25, **said)
            for g, count in enumerate(rows):
                check(got[g, :count], multiplied(a, b)[g, :count], dtype)
            return None
        table = {"row_groups": ids} if grouping == "row_groups" else {"group_ends": ends}
        got = ops.w8a16_grouped_gemm(a, b.blocks, **table, **said)
    whole = a.double() @ weighed(b).mT  # of each expert
    first, third = (slice(0, 40), slice(256, 281)) if grouping == "row_groups" else (slice(0, 40), slice(128, 153))  # fmt: skip
    check(got[first], whole[0, first], dtype)
    check(got[third], whole[2, third], dtype)


def test_multiply_takes_the_same(monkeypatch):
    form, dtype = FORMS["int8"]
    b, a = packed(form, dtype, 70, 128), torch.randn(3, 128).to(dtype)
    p = Problem(family="w8a16", a="bf16", b="bf16", weights=b.weights)
    memory = Memory(a, b.blocks)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.multiply(p, a, b.blocks, columns=70)
        assert torch.equal(got, ops.w8a16_gemm(a, b.blocks, weights=b.weights, columns=70))


@forms
@pytest.mark.parametrize(("n", "columns"), ((70, 70), (128, None)))
def test_operators_on_the_cpu(name, n, columns):
    """By what was quantised, of which nothing was packed."""
    form, dtype = FORMS[name]
    weights = quant.of(torch.randn(n, 192) / 14, form)
    b, a = quant.pack(weights, dtype), torch.randn(9, 192).to(dtype)
    said = {"weights": b.weights, "columns": columns, "scale_b": b.factors}
    with computing_on_cpu():
        found = torch.ops.gemmgen.w8a16_gemm(a, b.blocks, **said)
        ragged = torch.ops.gemmgen.w8a16_gemm(a[:, :72].contiguous(), b.blocks[:, :1], **said)
    check(found, a.double() @ weights.dequantise().mT, dtype)
    check(ragged, a[:, :72].double() @ weights.dequantise()[:, :72].mT, dtype)


BLOCKS = torch.zeros(2, 1, 8192, dtype=torch.uint8)  # 128 x 128
GIVEN = {"a": torch.zeros(3, 128).bfloat16(), "b": BLOCKS, "weights": "int8_column_f32"}


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"weights": "int8"}, "weights='int8': must be one of int8_column_f32, e4m3_column_f32"),
        ({"weights": "int8_column_f32_f16"}, "weights='int8_column_f32_f16': must be one of"),
        ({"weights": "int4_128_bf16"}, "weights='int4_128_bf16': must be one of int8_column_f32"),
        ({"columns": 64}, "columns=64: must be 65 to 128, or None"),
        ({"b": BLOCKS.char()}, "b dtype=torch.int8: must be torch.uint8"),
        ({"a": torch.zeros(3, 128)}, "a dtype"),
        ({"out_dtype": "e4m3"}, "out_dtype='e4m3': must be one of bf16, f16, f32"),
    ),
)
def test_what_is_refused(changes, message, monkeypatch):
    memory = Memory(*(x for x in {**GIVEN, **changes}.values() if isinstance(x, torch.Tensor)))
    emulated(monkeypatch, memory)
    with memory, pytest.raises(ArgumentError, match="^" + message):
        ops.w8a16_gemm(**{**GIVEN, **changes})


def test_codes_that_are_no_numbers_are_refused_when_they_are_packed():
    weights = quant.of(torch.randn(8, 64), formats.FP8_ROWS)
    weights.codes[3, 4] = 0x7F
    with pytest.raises(ArgumentError, match=r"^codes='0x7f': is not finite, at \(3, 4\)"):
        quant.pack(weights)
