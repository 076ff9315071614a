"""INT8 and FP8 of checkpoints with a scale for each channel: read, packed, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gemmgen import formats, quant  # noqa: E402
from gemmgen.errors import ArgumentError  # noqa: E402

NAME = "model.layers.0.mlp.up_proj"
WEIGHT, SCALE, ZERO = (f"{NAME}.{x}" for x in ("weight", "weight_scale", "weight_zero_point"))
PACKED, SHAPE = f"{NAME}.weight_packed", f"{NAME}.weight_shape"
FP8 = torch.float8_e4m3fn


def stored(dtype, *sides, scale=torch.float32):
    """A layer's tensors, and what they stand for."""
    codes = torch.randint(-128, 128, sides or (70, 96)).to(torch.int8)
    if dtype == FP8:
        codes = (torch.randn(codes.shape) * 100).to(FP8)
    scales = (torch.rand(*codes.shape[:-1], 1) + 0.01).to(scale)
    return {WEIGHT: codes, SCALE: scales}, codes.double() * scales.double()


@pytest.mark.parametrize("dtype", (torch.int8, FP8))
@pytest.mark.parametrize("scale", (torch.float32, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("sides", ((70, 96), (3, 8, 66)))
def test_a_layer_stands_for_what_was_stored(dtype, scale, sides):
    tensors, exact = stored(dtype, *sides, scale=scale)
    found = quant.channels(tensors, NAME)
    assert found.format == (formats.FP8_ROWS if dtype == FP8 else formats.INT8_ROWS)
    assert found.shape == sides and torch.equal(found.dequantise(), exact)
    assert found.codes.data_ptr() == tensors[WEIGHT].data_ptr()
    loaded = quant.load({**tensors, "model.norm.weight": torch.ones(4).half()}, "channels")
    assert [*loaded] == [NAME] and torch.equal(loaded[NAME].dequantise(), exact)
    for to in (torch.bfloat16, torch.float16):
        packed = quant.pack(found, to)
        assert torch.equal(packed.numbers().double() * packed.factors.double()[..., None], exact)


@pytest.mark.parametrize("sides", ((70,), (1,), (), (1, 1)))
def test_scales_of_rows_and_of_a_tensor(sides):
    tensors, _ = stored(FP8)
    tensors[SCALE] = torch.rand(sides) + 0.01
    rows = tensors[SCALE].double().reshape(-1, 1)
    found = quant.channels(tensors, NAME)
    assert found.scales.shape == (70, 1)
    assert torch.equal(found.dequantise(), tensors[WEIGHT].double() * rows)


@pytest.mark.parametrize("columns", (96, 98))
def test_codes_in_words(columns):
    """As compressed-tensors packs them: column 4 j + i is in the byte i of word j, as a code and 128."""
    tensors, exact = stored(torch.int8, 70, columns)
    octets = torch.zeros(70, columns + -columns % 4, dtype=torch.int64)
    octets[:, :columns] = tensors.pop(WEIGHT).long() + 128
    words = sum(octets[:, i::4] << 8 * i for i in range(4))
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    tensors |= {PACKED: words, SHAPE: torch.tensor([70, columns])}
    found = quant.channels_packed(tensors, NAME)
    assert found.format == formats.INT8_ROWS and torch.equal(found.dequantise(), exact)
    loaded = quant.load(tensors, "channels_packed")
    assert torch.equal(loaded[NAME].dequantise(), exact)
    for at, changed in (
        (PACKED, None),
        (PACKED, words[:, :-1]),
        (PACKED, words.long()),
        (SHAPE, torch.tensor([70, columns + 8])),
        (SHAPE, torch.tensor([70])),
        (f"{NAME}.weight_g_idx", torch.zeros(columns)),
    ):
        wrong = {**tensors, at: changed}
        with pytest.raises(ArgumentError) as e:
            quant.channels_packed({k: v for k, v in wrong.items() if v is not None}, NAME)
        assert e.value.argument.split()[0] == (
            PACKED if at == SHAPE and changed.numel() > 1 else at
        )


def test_zeros_in_words():
    """As codes are: byte i of word j is row 4 j + i, a zero point and 128."""
    tensors, exact = stored(torch.int8)
    octets = (tensors.pop(WEIGHT).int() + 128).to(torch.uint8)
    tensors |= {PACKED: octets.view(torch.int32), SHAPE: torch.tensor([70, 96])}
    zeros = torch.full((72, 1), 128, dtype=torch.uint8)
    zeros[70:] = 5  # of no row
    tensors[ZERO] = zeros.view(18, 4).view(torch.int32)
    assert torch.equal(quant.channels_packed(tensors, NAME).dequantise(), exact)
    zeros[3] = 129
    for wrong in (tensors[ZERO], torch.zeros(18, 1).int(), torch.zeros(70, 1).int()):
        with pytest.raises(ArgumentError, match="weight_zero_point"):
            quant.channels_packed({**tensors, ZERO: wrong}, NAME)


def test_zeros_that_are_0_are_none():
    tensors, exact = stored(torch.int8)
    tensors[ZERO] = torch.zeros(70, 1, dtype=torch.int8)
    assert torch.equal(quant.channels(tensors, NAME).dequantise(), exact)
    tensors[ZERO][3] = 1
    with pytest.raises(ArgumentError, match=r"^model.*weight_zero_point='not 0': must be 0"):
        quant.channels(tensors, NAME)


@pytest.mark.parametrize(
    ("at", "changed"),
    (
        (WEIGHT, None),
        (WEIGHT, torch.zeros(70, 96)),
        (WEIGHT, torch.zeros(96, dtype=torch.int8)),
        (WEIGHT, torch.zeros(70, 97, dtype=torch.int8)),
        (WEIGHT, torch.full((70, 96), torch.nan).to(FP8)),
        (SCALE, None),
        (SCALE, torch.zeros(70, 2)),
        (SCALE, torch.zeros(96)),
        (SCALE, torch.zeros(70, 1, dtype=torch.float64)),
        (SCALE, torch.full((70, 1), torch.inf)),
    ),
)
def test_what_is_not_taken_is_named(at, changed):
    tensors, _ = stored(torch.int8)
    if changed is None:
        del tensors[at]
    else:
        tensors[at] = changed
    with pytest.raises(ArgumentError) as e:
        quant.channels(tensors, NAME)
    assert e.value.argument.split()[0] == at
