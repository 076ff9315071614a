"""INT4 of compressed-tensors: read, packed, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gemmgen import formats, quant  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402

NAME = "model.layers.0.mlp.up_proj"
PACKED, SHAPE, SCALE, ZERO, ORDER = (
    f"{NAME}.weight_{x}" for x in ("packed", "shape", "scale", "zero_point", "g_idx")
)
N, K = 70, 256


def in_words(codes, along):
    """Codes 0 to 15, eight neighbours `along` a side in an int32, the first in the lowest four bits."""
    codes = codes.movedim(along, -1).long()
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % 8))
    words = sum(padded[..., i::8] << 4 * i for i in range(8))
    return (
        torch.where(words >= 1 << 31, words - (1 << 32), words)
        .int()
        .movedim(-1, along)
        .contiguous()
    )


def stored(group=128, dtype=torch.bfloat16, zeros=False):
    """A layer's tensors, and what they stand for."""
    group = group or K
    codes, points = torch.randint(0, 16, (N, K)), torch.randint(0, 16, (N, K // group))
    points = points if zeros else torch.full_like(points, 8)
    scales = (torch.rand(N, K // group) + 0.01).to(dtype)
    wide = [x.repeat_interleave(group, 1) for x in (points, scales)]
    tensors = {PACKED: in_words(codes, 1), SHAPE: torch.tensor([N, K]), SCALE: scales}
    tensors |= {ZERO: in_words(points, 0)} if zeros else {}
    return tensors, (codes - wide[0]).double() * wide[1].double()


@pytest.mark.parametrize("zeros", (False, True))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32))
@pytest.mark.parametrize("group", (32, 64, 128, 0))
def test_a_layer_stands_for_what_was_stored(group, dtype, zeros):
    tensors, exact = stored(group, dtype, zeros)
    found = quant.int4_packed(tensors, NAME)
    name = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[dtype]
    assert found.format == formats.int4(group, name, zeros=zeros)
    assert torch.equal(found.dequantise(), exact)
    assert found.codes.data_ptr() == tensors[PACKED].data_ptr()
    loaded = quant.load({**tensors, "model.norm.weight": torch.ones(4).half()}, "int4_packed")
    assert [*loaded] == [NAME] and torch.equal(loaded[NAME].dequantise(), exact)


def test_zeros_that_are_8_are_none_and_an_order_that_is_none():
    tensors, exact = stored()
    tensors[ZERO] = in_words(torch.full((N, 2), 8), 0)
    tensors[ORDER] = (torch.arange(K) // 128).int()
    found = quant.int4_packed(tensors, NAME)
    assert found.zeros is None and torch.equal(found.dequantise(), exact)


def test_it_is_multiplied_by_fp8():
    """To the bit: scales become float32."""
    for group in (128, 0):
        tensors, exact = stored(group, torch.float16)
        packed = quant.pack(quant.int4_packed(tensors, NAME), torch.float8_e4m3fn)
        scales = packed.sum_scales().double().repeat_interleave(128, 1)
        assert packed.weights == "int4_128_f32" and packed.activations == "e4m3_128"
        assert torch.equal(packed.numbers().double() * scales, exact)


@pytest.mark.parametrize(
    ("at", "changed"),
    (
        *((x, None) for x in (PACKED, SHAPE, SCALE)),
        (PACKED, torch.zeros(N, 31, dtype=torch.int32)),
        (PACKED, torch.zeros(N, 32, dtype=torch.int64)),
        (SHAPE, torch.tensor([N])),
        (SCALE, torch.ones(N, 3)),
        (SCALE, torch.ones(N + 1, 2)),
        (SCALE, torch.ones(N)),
        (SCALE, torch.full((N, 2), torch.inf)),
        (ZERO, torch.zeros(N, 2, dtype=torch.int32)),
        (ZERO, torch.zeros(9, 2, dtype=torch.int8)),
        (ORDER, torch.arange(K).flip(0) // 128),
        (ORDER, torch.full((K,), -1)),
    ),
)
def test_what_is_refused(at, changed):
    tensors = {**stored()[0], at: changed}
    with pytest.raises(ArgumentError) as e:
        quant.int4_packed({k: v for k, v in tensors.items() if v is not None}, NAME)
    assert e.value.argument.split()[0] == at


def test_sides_that_are_others_are_refused():
    with pytest.raises(ArgumentError, match="eight codes of 264 columns to a word"):
        quant.int4_packed({**stored()[0], SHAPE: torch.tensor([N, K + 8])}, NAME)
