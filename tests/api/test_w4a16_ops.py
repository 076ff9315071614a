"""GEMMs of weights of 4 bits: from a checkpoint's form to D, emulated, against the dequantised weights; and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

import four_bits  # noqa: E402
from emulated_ops import Memory, emulated, real_torch  # noqa: E402, F401
from four_bits import exact, packed  # noqa: E402
from roundings import UNIT  # noqa: E402

from gemmgen import Config, formats, ops  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402

FORMS = four_bits.FORMS | {"zeros": (formats.int4(32, "f16", zeros=True), torch.float16)}
# Sums of size 1, so of 4 at most, in FP32: each of K / 16 steps, of which there are 40, cuts off 2^-23 of that.
SUMS = 2.0**-15
# SwiGLU of two sums of size 1 and 16 steps each, and what a fast exponential and division are off by.
GATED = {"atol": 2.0**-18, "rtol": 2.0**-18}


def multiplied(a, weights):
    return a.double() @ exact(weights).mT


def check(got, want, dtype):
    """Rounded once."""
    off = (got.double() - want).abs()
    assert bool((off <= UNIT[dtype] * want.abs() + SUMS).all())


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("m", "n", "k"), ((1, 64, 128), (17, 200, 384)))
def test_one(name, m, n, k, monkeypatch):
    form, dtype = FORMS[name]
    b, a = packed(form, dtype, n, k), torch.randn(m, k).to(dtype)
    memory = Memory(a, b.blocks, *[b.factors] * (b.factors is not None))
    emulated(monkeypatch, memory)
    with memory:
        got = ops.w4a16_gemm(a, b.blocks, weights=b.weights, scale_b=b.factors, columns=n)
    check(got, multiplied(a, b), dtype)


@pytest.mark.parametrize("how", ({"stream": True}, {"split_k": 2}, {"ping_pong": True}), ids=str)
def test_a_config_that_is_given(how, monkeypatch):
    """Three tiles of K blocks that do not divide evenly."""
    form, dtype = FORMS["zeros"]
    b, a = packed(form, dtype, 300, 640), torch.randn(40, 640).to(dtype)
    config = Config(swap_ab=True, block_m=40, block_k_bytes=256, stages=3, in_flight=1, **how)
    memory = Memory(a, b.blocks)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.w4a16_gemm(a, b.blocks, weights=b.weights, columns=300, config=config)
    check(got, multiplied(a, b), dtype)


def test_an_epilogue_and_fp32(monkeypatch):
    form, dtype = FORMS["int4"]
    b, a, bias = packed(form, dtype, 128, 256), torch.randn(5, 256).to(dtype), torch.randn(128)
    memory = Memory(a, b.blocks, bias)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.w4a16_gemm(
            a, b.blocks, weights=b.weights, out_dtype="f32", epilogue="bias_relu", bias=bias
        )
    want = (multiplied(a, b) + bias.double()).relu()
    assert torch.allclose(got.double(), want, rtol=0, atol=SUMS)


@pytest.mark.parametrize("grouping", ("batched", "masked", "row_groups", "group_ends"))
def test_experts(grouping, monkeypatch):
    form, dtype = FORMS["mxfp4"]
    experts, n, k = 3, 128, 256
    b = packed(form, dtype, experts, n, k)
    said = {"weights": b.weights, "columns": n}
    rows = torch.tensor([40, 0, 25], dtype=torch.int32)
    alone = grouping in ("batched", "masked")
    a = torch.randn(*((experts, 64, k) if alone else (384, k))).to(dtype)
    ids = torch.full((384,), -1, dtype=torch.int32)
    ids[:40], ids[256:281] = 0, 2
    ends = torch.tensor([40, 128, 281 - 128], dtype=torch.int32)
    memory = Memory(a, b.blocks, rows, ids, ends)
    emulated(monkeypatch, memory)
    with memory:
        if grouping == "batched":
            got = ops.w4a16_batched_gemm(a, b.blocks, **said)
            return check(got, multiplied(a, b), dtype)
        if grouping == "masked":
            got = ops.w4a16_masked_gemm(a, b.blocks, rows, expected_rows=25, **said)
            for g, count in enumerate(rows):
                check(got[g, :count], multiplied(a, b)[g, :count], dtype)
            return None
        table = {"row_groups": ids} if grouping == "row_groups" else {"group_ends": ends}
        got = ops.w4a16_grouped_gemm(a, b.blocks, **table, **said)
    whole = a.double() @ b.numbers().double().mT  # of each expert
    first, third = (slice(0, 40), slice(256, 281)) if grouping == "row_groups" else (slice(0, 40), slice(128, 153))  # fmt: skip
    check(got[first], whole[0, first], dtype)
    check(got[third], whole[2, third], dtype)


@pytest.mark.parametrize("function", ("w4a16_batched_gemm", "w4a16_masked_gemm"))
def test_no_experts(function, monkeypatch):
    form, dtype = FORMS["int4"]
    blocks = packed(form, dtype, 1, 128, 256).blocks[:0]
    a, rows = torch.zeros(0, 7, 256).to(dtype), torch.zeros(0, dtype=torch.int32)
    table = (rows,) * (function == "w4a16_masked_gemm")
    memory = Memory(a, blocks, rows)
    emulated(monkeypatch, memory)
    with memory:
        got = getattr(ops, function)(a, blocks, *table, weights="int4_128_bf16", columns=128)
    assert got.shape == (0, 7, 128)


def test_multiply_takes_the_same(monkeypatch):
    from gemmgen import Problem

    form, dtype = FORMS["int4"]
    b, a = packed(form, dtype, 70, 128), torch.randn(3, 128).to(dtype)
    p = Problem(family="w4a16", a="bf16", b="bf16", weights=b.weights)
    memory = Memory(a, b.blocks)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.multiply(p, a, b.blocks, columns=70)
        assert torch.equal(got, ops.w4a16_gemm(a, b.blocks, weights=b.weights, columns=70))


BLOCKS = torch.zeros(2, 1, 4224, dtype=torch.uint8)  # 128 x 128, a scale for each row
GIVEN = {"a": torch.zeros(3, 128).bfloat16(), "b": BLOCKS, "weights": "int4_128_bf16"}


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"weights": "int4"}, "weights='int4': must be one of int4_32_bf16"),
        ({"weights": "int4_128_f16"}, "weights='int4_128_f16': must be one of int4_32_bf16"),
        ({"weights": None}, "weights=None: must be one of"),
        ({"columns": 64}, "columns=64: must be 65 to 128, or None"),
        ({"columns": 129}, "columns=129: must be 65 to 128, or None"),
        ({"columns": True}, "columns=True: must be 65 to 128, or None"),
        ({"b": BLOCKS.float()}, "b dtype=torch.float32: must be torch.uint8"),
        ({"b": [1]}, "b='list': must be a torch tensor"),
        ({"a": torch.zeros(3, 128)}, "a dtype"),
        ({"out_dtype": "e4m3"}, "out_dtype='e4m3': must be one of bf16, f16, f32"),
    ),
)
def test_what_is_refused(changes, message, monkeypatch):
    memory = Memory(*(x for x in {**GIVEN, **changes}.values() if isinstance(x, torch.Tensor)))
    emulated(monkeypatch, memory)
    with memory, pytest.raises(ArgumentError, match="^" + message.replace("(", r"\(")):
        ops.w4a16_gemm(**{**GIVEN, **changes})


def test_pairs_of_columns(monkeypatch):
    form, dtype = FORMS["mxfp4"]
    b, a = packed(form, dtype, 128, 256), torch.randn(5, 256).to(dtype)
    memory = Memory(a, b.blocks)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.w4a16_gemm(a, b.blocks, weights=b.weights, out_dtype="f32", epilogue="swiglu")
    gate, up = multiplied(a, b).view(5, 64, 2).unbind(-1)
    want = torch.nn.functional.silu(gate) * up
    assert torch.allclose(got.double(), want, **GATED)
