"""GEMMs of FP8 with a scale for each 128 of K and MXFP4, emulated, against the dequantised numbers; and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

from emulated_ops import Memory, emulated, real_torch  # noqa: E402, F401
from four_bits import exact  # noqa: E402
from roundings import check_fast_sums  # noqa: E402

from gemmgen import Config, Problem, formats, ops, quant  # noqa: E402
from gemmgen.epilogues import PerColumn  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402
from gemmgen.ir.expr import ACC  # noqa: E402

FP8 = torch.float8_e4m3fn
BLOCK = 128  # of K, over which the tensor core sums
FORMS = pytest.mark.parametrize(
    "form", (formats.MXFP4, formats.int4(128, "f16")), ids=lambda x: x.element
)


def packed(*shape, form=formats.MXFP4):
    return quant.pack(quant.of(torch.randn(*shape), form), FP8)


def activations(*shape):
    """Codes, and scales for each 128 of a row that differ by up to 2^16, contiguous along the rows."""
    x = torch.randn(*shape) * torch.exp2(
        torch.randint(-8, 9, (shape[-1] // 128,)).repeat_interleave(128)
    )
    return ops.quantise_rows(x)


def exactly(a, scale, weights):
    """In float64."""
    wide = scale.double().repeat_interleave(128, -1)[..., : a.shape[-1]]
    return a.double() * wide @ exact(weights).mT


@FORMS
@pytest.mark.parametrize("layout", ("mn", "row"))
@pytest.mark.parametrize("dtype", ("bf16", "f16", "f32"))
@pytest.mark.parametrize(("m", "n", "k"), ((1, 64, 128), (17, 200, 384)))
def test_one(m, n, k, dtype, layout, form, monkeypatch):
    b, (a, scale) = packed(n, k, form=form), activations(m, k)
    scale = scale.contiguous() if layout == "row" else scale
    held = [a, scale, b.blocks, *[b.factors] * (b.factors is not None)]
    memory = Memory(*held)
    emulated(monkeypatch, memory)
    given = {"scale_a_layout": layout, "scale_b": b.factors, "weights": b.weights}
    with memory:
        got = ops.w4a8_block_gemm(a, scale, b.blocks, columns=n, out_dtype=dtype, **given)
    check_fast_sums(got, exactly(a, scale, b), BLOCK)


@FORMS
@pytest.mark.parametrize("grouping", ("batched", "masked", "row_groups", "group_ends"))
def test_experts(grouping, form, monkeypatch):
    experts, n, k = 3, 128, 256
    b = packed(experts, n, k, form=form)
    rows = torch.tensor([40, 0, 25], dtype=torch.int32)
    alone = grouping in ("batched", "masked")
    a, scale = activations(*((experts, 64, k) if alone else (384, k)))
    ids = torch.full((384,), -1, dtype=torch.int32)
    ids[:40], ids[256:281] = 0, 2
    ends = torch.tensor([40, 128, 153], dtype=torch.int32)
    said = {"scale_a_layout": "mn", "scale_b": b.factors, "columns": n, "weights": b.weights}
    memory = Memory(a, scale, b.blocks, rows, ids, ends, *[b.factors] * (b.factors is not None))
    emulated(monkeypatch, memory)
    with memory:
        if grouping == "batched":
            got = ops.w4a8_block_batched_gemm(a, scale, b.blocks, **said)
        elif grouping == "masked":
            got = ops.w4a8_block_masked_gemm(a, scale, b.blocks, rows, expected_rows=25, **said)
        else:
            table = {"row_groups": ids} if grouping == "row_groups" else {"group_ends": ends}
            got = ops.w4a8_block_grouped_gemm(a, scale, b.blocks, **table, **said)
    if alone:
        want = exactly(a, scale, b)
        for g, count in enumerate(rows if grouping == "masked" else (64,) * experts):
            check_fast_sums(got[g, :count], want[g, :count], BLOCK)
        return
    last = slice(256, 281) if grouping == "row_groups" else slice(128, 153)
    want = exactly(a.expand(experts, 384, k), scale.expand(experts, 384, -1), b)
    for g, some in ((0, slice(0, 40)), (2, last)):
        check_fast_sums(got[some], want[g, some], BLOCK)


def test_an_epilogue_of_the_scaled_product_and_a_config(monkeypatch):
    b, (a, scale) = packed(130, 640), activations(40, 640)
    bias = torch.randn(130)
    config = Config(swap_ab=True, block_m=40, stages=3, split_k=2)
    memory = Memory(a, scale, b.blocks, b.factors, bias)
    emulated(monkeypatch, memory)
    with memory:
        got = ops.w4a8_block_gemm(
            a, scale, b.blocks, scale_a_layout="mn", scale_b=b.factors, columns=130, out_dtype="f32",
            config=config, epilogue="bias_relu", bias=bias,
        )  # fmt: skip
    check_fast_sums(got, (exactly(a, scale, b) + bias.double()).relu(), BLOCK)


def test_multiply_takes_the_same(monkeypatch):
    """A row's factors are the epilogue's, by the name that other operands have for scales."""
    b, (a, scale) = packed(70, 128), activations(3, 128)
    p = Problem(family="w4a8_block", a="e4m3", b="e4m3", weights=b.weights)
    scaled = replace(p, epilogue=ACC * PerColumn("scale_b"))
    memory = Memory(a, scale, b.blocks, b.factors)
    emulated(monkeypatch, memory)
    said = {"scale_a": scale, "scale_layout": "mn", "columns": 70}
    with memory:
        for problem, given in ((p, {}), (scaled, {"scale_b": b.factors})):
            got = ops.multiply(problem, a, b.blocks, **said, **given)
            want = ops.w4a8_block_gemm(a, scale, b.blocks, scale_a_layout="mn", columns=70, **given)
            assert torch.equal(got, want)


GIVEN = {
    "a": torch.zeros(3, 128).to(FP8),
    "scale_a": torch.ones(3, 1),
    "b": torch.zeros(2, 1, 4352, dtype=torch.uint8),
    "scale_a_layout": "mn",
}


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"a": torch.zeros(3, 128).bfloat16()}, "a dtype=torch.bfloat16: must be torch.float8_e4m3fn"),
        ({"scale_a_layout": "m"}, "scale_a_layout='m': must be 'row' or 'mn'"),
        ({"weights": "int4_128_bf16"}, "weights='int4_128_bf16': must be one of e2m1_32_e8m0"),
        ({"columns": 64}, "columns=64: must be 65 to 128, or None"),
        ({"out_dtype": "e4m3"}, "out_dtype='e4m3': must be"),
    ),
)  # fmt: skip
def test_what_is_refused(changes, message, monkeypatch):
    given = GIVEN | changes
    memory = Memory(*(x for x in given.values() if isinstance(x, torch.Tensor)))
    emulated(monkeypatch, memory)
    with memory, pytest.raises(ArgumentError, match="^" + message):
        ops.w4a8_block_gemm(**given)
