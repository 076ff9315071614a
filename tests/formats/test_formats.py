"""Weights of 4 bits: every code with every scale is the number that the format's definition says, and back."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from gemmgen import formats
from gemmgen.codes import decode
from gemmgen.errors import ArgumentError
from gemmgen.formats import (
    MXFP4,
    NVFP4,
    Format,
    Weights,
    dequantise,
    int4,
    nibbles,
    paired,
    quantise,
)
from gemmgen.ir.dtypes import E4M3

# OCP Microscaling Formats 1.0, table 5: by sign, exponent and fraction.
E2M1 = [(-1) ** s * (Fraction(m, 2) if e == 0 else 2 ** (e - 1) * (1 + Fraction(m, 2)))
        for s, e, m in itertools.product((0, 1), range(4), (0, 1))]  # fmt: skip
E4M3_NAN = (0x7F, 0xFF)


def row_per_scale(form: Format, scales: np.ndarray, **more) -> Weights:
    """All sixteen codes with each of the scales, a row each."""
    codes = np.tile(np.arange(16, dtype=np.uint8), form.group // 16)
    return Weights(
        format=form, codes=paired(np.tile(codes, (len(scales), 1))), scales=scales[:, None], **more
    )


def test_e2m1_is_what_the_standard_says():
    values = formats.e2m1_values(np.arange(16, dtype=np.uint8))
    assert [Fraction(float(x)) for x in values] == E2M1
    assert np.signbit(values).tolist() == [False] * 8 + [True] * 8


def test_the_nearest_e2m1_with_ties_to_even_and_saturating():
    x = np.arange(-8 * 64, 8 * 64 + 1) / 64.0
    for value, code in zip(x.tolist(), formats.e2m1(x).tolist(), strict=True):
        size = [abs(v) for v in E2M1[:8]]
        far = [abs(v - abs(Fraction(value))) for v in size]
        nearest = [i for i in range(8) if far[i] == min(far)]
        wanted = nearest[0] if len(nearest) == 1 else next(i for i in nearest if i % 2 == 0)
        assert code & 7 == wanted and (code >= 8) == (value < 0), value
    assert formats.e2m1(np.array([-0.0, 1e300])).tolist() == [8, 7]


def test_e8m0_is_a_power_of_two():
    values = formats.e8m0_values(np.arange(256, dtype=np.uint8))
    assert [Fraction(x) for x in values[:255].tolist()] == [
        Fraction(2) ** (e - 127) for e in range(255)
    ]
    assert np.isnan(values[255])


def test_every_code_with_every_scale_of_mxfp4():
    got = dequantise(row_per_scale(MXFP4, np.arange(255, dtype=np.uint8)))
    for e in range(255):
        wanted = [v * Fraction(2) ** (e - 127) for v in E2M1] * 2
        assert [Fraction(x) for x in got[e].tolist()] == wanted


@pytest.mark.parametrize("whole", [1.0, float(np.float32(1 / 3)), 2.0**-140])
def test_every_code_with_every_scale_of_nvfp4(whole):
    scales = np.array([x for x in range(256) if x not in E4M3_NAN], np.uint8)
    got = dequantise(row_per_scale(NVFP4, scales, tensor_scale=whole))
    for row, scale in zip(got.tolist(), decode(scales, E4M3).tolist(), strict=True):
        assert [Fraction(x) for x in row] == [v * Fraction(scale) * Fraction(whole) for v in E2M1]


@pytest.mark.parametrize("scale", ["f16", "bf16"])
@pytest.mark.parametrize("zero", [None, 0, 7, 15])
def test_every_code_with_every_scale_of_int4(scale, zero):
    bits = np.arange(1 << 16, dtype=np.uint16)
    # NumPy's own reading of the bits, not gemmgen's.
    values = (
        bits.view(np.float16) if scale == "f16" else (bits.astype(np.uint32) << 16).view(np.float32)
    )
    finite = np.isfinite(values)
    zeros = None if zero is None else np.full((finite.sum(), 1), zero, np.uint8)
    form = int4(32, scale, zeros=zero is not None)
    got = dequantise(row_per_scale(form, bits[finite], zeros=zeros))
    steps = np.arange(16) - (8 if zero is None else zero)
    wanted = values[finite].astype(np.float64)[:, None] * steps
    assert np.array_equal(got, np.tile(wanted, 2))


def test_codes_lie_low_four_bits_first():
    codes = np.arange(16, dtype=np.uint8).reshape(1, 16)
    assert paired(codes).tolist() == [[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]]
    assert np.array_equal(nibbles(paired(codes)), codes)


ALL = [MXFP4, NVFP4, *(int4(g, s, zeros=z) for g in formats.GROUPS for s in ("f16", "bf16", "f32") for z in (False, True))]  # fmt: skip


@pytest.mark.parametrize("form", [f for f in ALL if not f.zeros], ids=lambda f: f.name)
def test_what_a_format_holds_comes_back(form):
    """Exactly: a group's greatest magnitude says its scale again."""
    rng = np.random.default_rng(3)
    once = quantise(rng.standard_normal((3, 8, 256)).astype(np.float32), form)
    assert np.array_equal(dequantise(quantise(dequantise(once), form)), dequantise(once))
    assert once.shape == (3, 8, 256) and once.codes.shape == (3, 8, 128)


@pytest.mark.parametrize("form", ALL, ids=lambda f: f.name)
def test_no_other_code_is_nearer(form):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((4, 128)) * np.exp(rng.standard_normal((4, 1)) * 3)
    got = quantise(x, form)
    far = np.abs(dequantise(got) - x)
    for code in range(16):
        every = np.full_like(nibbles(got.codes), code)
        other = Weights(format=form, codes=paired(every), scales=got.scales, zeros=got.zeros,
                        tensor_scale=got.tensor_scale)  # fmt: skip
        assert (far <= np.abs(dequantise(other) - x)).all()


def test_mxfp4_takes_the_power_of_two_that_the_standard_says():
    x = np.zeros((4, 32))
    x[:, 3] = [4.0, 7.99, 8.0, 0.0]  # the greatest is 1.5 * 2^2: its exponent is 2
    got = quantise(x, MXFP4)
    assert got.scales[:, 0].tolist() == [127, 127, 128, 0]
    assert dequantise(got)[:, 3].tolist() == [4.0, 6.0, 8.0, 0.0]


def test_mxfp4_at_the_ends_of_its_exponents():
    got = quantise(np.full((1, 32), 2.0**-140), MXFP4)
    assert got.scales.tolist() == [[0]] and not dequantise(got).any()
    assert quantise(np.full((1, 32), 1e300), MXFP4).scales.tolist() == [[254]]


def test_nvfp4_uses_the_whole_range_of_its_scales():
    x = np.random.default_rng(1).standard_normal((16, 64))
    got = quantise(x, NVFP4)
    assert decode(got.scales, E4M3).max() == 448.0
    assert got.tensor_scale == float(np.float32(np.abs(x).max() / (6 * 448)))
    assert not dequantise(quantise(np.zeros((2, 16)), NVFP4)).any()


def test_int4_with_zeros_has_zero_itself():
    x = np.random.default_rng(2).standard_normal((4, 64)) + 3
    got = quantise(np.where(np.arange(64) % 7, x, 0.0), int4(32, zeros=True))
    assert (
        (dequantise(got)[:, ::7] == 0).all() and got.zeros is not None and (got.zeros <= 15).all()
    )


WRONG = {
    "element": {"element": "int3", "group": 128, "scale": "f16"},
    "scale": {"element": "int4", "group": 128, "scale": "e8m0"},
    "group": {"element": "int4", "group": 96, "scale": "f16"},
    "zeros": {"element": "e2m1", "group": 32, "scale": "e8m0", "zeros": True},
}


@pytest.mark.parametrize("form", ALL, ids=lambda x: x.name)
def test_a_name_says_the_format(form):
    assert formats.named(form.name) == form


@pytest.mark.parametrize("name", ("int4", "int4_16_f16", "e2m1_32_e8m0_zeros", None))
def test_names_of_no_format_are_refused(name):
    with pytest.raises(ArgumentError, match="name="):
        formats.named(name)


@pytest.mark.parametrize("argument", WRONG)
def test_formats_that_are_none_are_refused(argument):
    with pytest.raises(ArgumentError) as e:
        Format(**WRONG[argument])
    assert e.value.argument == argument


def held(**changes):
    form = changes.pop("format", int4(32, zeros=True))
    of = {"codes": np.zeros((4, 32), np.uint8), "scales": np.ones((4, 2), np.uint16)}
    return Weights(**{"format": form, **of, "zeros": np.ones((4, 2), np.uint8)} | changes)


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("codes", {"codes": [[0]]}),
        ("codes dtype", {"codes": np.zeros((4, 32), np.int8)}),
        ("codes shape", {"codes": np.zeros(32, np.uint8)}),
        (
            "codes shape",
            {"codes": np.zeros((0, 32), np.uint8), "scales": np.ones((0, 2), np.uint16)},
        ),
        ("codes shape", {"codes": np.zeros((4, 0), np.uint8)}),
        ("K", {"codes": np.zeros((4, 24), np.uint8)}),
        ("scales dtype", {"scales": np.ones((4, 2), np.float16)}),
        ("scales shape", {"scales": np.ones((4, 3), np.uint16)}),
        ("scales", {"scales": np.full((4, 2), 0x7C00, np.uint16)}),
        ("zeros", {"zeros": None}),
        ("zeros shape", {"zeros": np.ones((2, 4), np.uint8)}),
        ("zeros", {"zeros": np.full((4, 2), 16, np.uint8)}),
        ("zeros", {"format": int4(32)}),
        ("tensor_scale", {"tensor_scale": 2.0}),
        ("tensor_scale", {"tensor_scale": 0.1}),
        ("tensor_scale", {"tensor_scale": float("inf")}),
        ("scales", {"format": MXFP4, "zeros": None, "scales": np.full((4, 2), 255, np.uint8)}),
    ],
)
def test_arrays_that_are_no_weights_are_refused(argument, changes):
    with pytest.raises(ArgumentError) as e:
        held(**changes)
    assert e.value.argument == argument


@pytest.mark.parametrize(
    ("argument", "x", "form"),
    [
        ("x dtype", np.zeros((4, 32), np.int32), MXFP4),
        ("x dtype", [[0.0] * 32], MXFP4),
        ("x shape", np.zeros(32), MXFP4),
        ("x", np.full((4, 32), np.nan), MXFP4),
        ("x", np.full((4, 32), 1e6), int4(32)),
        ("x", np.full((4, 32), 1e300), NVFP4),
        ("K", np.zeros((4, 48)), MXFP4),
        ("K", np.zeros((4, 33)), int4(0)),
        ("x shape", np.zeros((4, 0)), int4(0)),
        ("x shape", np.zeros((0, 32)), MXFP4),
        ("x shape", np.zeros((0, 4, 32)), int4(32)),
    ],
)
def test_numbers_that_no_codes_are_nearest_to_are_refused(argument, x, form):
    with pytest.raises(ArgumentError) as e:
        quantise(x, form)
    assert e.value.argument == argument


def test_scales_of_int4_are_rounded_to_their_dtype():
    x = np.random.default_rng(7).standard_normal((2, 64))
    size = np.abs(x.reshape(2, 2, 32)).max(-1) / 7
    for scale, dtype in (("f16", np.float16), ("f32", np.float32)):
        got = quantise(x, int4(32, scale)).scales
        assert np.array_equal(got, size.astype(dtype).view(got.dtype))
