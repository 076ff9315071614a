"""Weights of 8 bits: quantised, packed where the tensor core wants them, decoded to the bit, and back; and what is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from test_packing import emulated

from gemmgen.codes import decode, encode
from gemmgen.emulator.products import words_of_a
from gemmgen.errors import ArgumentError, IRError
from gemmgen.formats import (
    FP8_ROWS,
    INT8_ROWS,
    Format,
    Packed,
    Weights,
    dequantise,
    elements,
    grouped,
    named,
    numbers,
    pack,
    quantise,
    rescaled,
    unpack,
)
from gemmgen.formats.packing import places
from gemmgen.ir.codings import OCTETS
from gemmgen.ir.dtypes import BF16, E4M3, F16
from gemmgen.ir.packed import (
    OF_8_BITS,
    OF_16_BITS,
    Form,
    every_name,
    forms,
    named_for,
    plain_weights,
)
from gemmgen.unpacking import Unpacking, source

FORMATS = (INT8_ROWS, FP8_ROWS)
KINDS = [(form, to) for form in FORMATS for to in OF_16_BITS]
kinds = pytest.mark.parametrize(("form", "to"), KINDS, ids=[f"{f.name}-{t}" for f, t in KINDS])
formats = pytest.mark.parametrize("form", FORMATS, ids=lambda f: f.name)
NAN = 0x7F


def drawn(form, *shape, seed=0):
    """Any codes, and scales of any size and sign."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, shape, np.uint8)
    if form == FP8_ROWS:
        codes[codes & NAN == NAN] = 0
    scales = rng.standard_normal((*shape[:-1], 1)) * np.exp2(rng.integers(-100, 100, (*shape[:-1], 1)))  # fmt: skip
    return Weights(format=form, codes=codes, scales=scales.astype(np.float32).view(np.uint32))


def every_code(form):
    """Each in every place of a word, in rows and columns that end inside of a block."""
    codes = np.stack([np.roll(np.arange(256, dtype=np.uint8), i) for i in range(72)])
    if form == FP8_ROWS:
        codes[codes & NAN == NAN] = 0x80
    return Weights(format=form, codes=codes, scales=np.full((72, 1), 0x3F800000, np.uint32))


@pytest.mark.parametrize("coding", OCTETS, ids=lambda c: f"{c.element}-{c.to}")
def test_codes_lie_where_a_fragment_has_them(coding):
    """Where the emulator's tensor core, which knows nothing of packing, reads A's registers: two words are a step of 16 of K."""
    row, column, bits = places(coding)
    of_a, word_of_k = words_of_a()
    for part, thread, i, j in np.ndindex(4, 128, 4, 4):
        word, step, register, half = (
            (part * 128 + thread) * 4 + i,
            2 * part + i // 2,
            i % 2 * 2 + j % 2,
            j // 2,
        )
        assert row[word, j] == of_a[register, thread]
        assert column[word, j] == 16 * step + 2 * word_of_k[register, thread] + half
        assert (bits[word, j] // 16 == half).all()
    seen = np.zeros((64, 128), int)
    np.add.at(seen, (row, column), 1)
    assert (seen == 1).all()
    assert all(sorted(x.ravel().tolist()) == list(range(32)) for x in bits)


@kinds
def test_what_is_packed_comes_back(form, to):
    for shape in ((64, 128), (3, 200, 384), (72, 162)):
        given = drawn(form, *shape)
        packed = pack(given, to)
        *lead, n, k = shape
        assert packed.blocks.shape == (*lead, -(-n // 64), -(-k // 128), 8192)
        assert packed.scales.shape == (*lead, n) and packed.scales.dtype == np.float32
        got = unpack(packed)
        assert np.array_equal(got.codes, given.codes) and np.array_equal(got.scales, given.scales)


@kinds
def test_numbers_are_exact_and_the_factors_are_what_they_lack(form, to):
    given = drawn(form, 72, 162)
    packed = pack(given, to)
    found = numbers(packed)
    assert np.array_equal(decode(encode(found, to), to), found)
    assert np.array_equal(found * packed.scales[:, None].astype(np.float64), dequantise(given))
    left = 8 if (form, to) == (FP8_ROWS, F16) else 0
    assert np.array_equal(found * 2.0**left, elements(given)) and packed.left == left


@pytest.mark.nvrtc
@kinds
def test_a_kernel_decodes_every_code(form, to):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    given = every_code(form)
    assert len(np.unique(given.codes)) == (254 if form == FP8_ROWS else 256)
    values = given.codes.view(np.int8) if form == INT8_ROWS else decode(given.codes, E4M3)
    lacks = 2.0**-8 if (form, to) == (FP8_ROWS, F16) else 1.0
    assert np.array_equal(emulated(pack(given, to)), encode(values * lacks, to))


def test_what_is_past_the_end_is_zero():
    for form, to in KINDS:
        blocks = pack(drawn(form, 8, 30), to).blocks
        whole = unpack(Packed(format=form, to=to, blocks=blocks, rows=64, columns=128))
        assert (whole.codes[8:] == 0).all() and (whole.codes[:, 30:] == 0).all()
        assert (dequantise(whole)[8:] == 0).all()


@pytest.mark.parametrize(("form", "most"), ((INT8_ROWS, 127), (FP8_ROWS, 448)))
def test_a_row_is_quantised_by_its_greatest(form, most):
    x = np.random.default_rng(1).standard_normal((2, 5, 96)) * np.exp2(np.arange(5))[:, None]
    x[1, 3] = 0
    got = quantise(x, form)
    scale = got.scales.view(np.float32)[..., 0]
    assert np.array_equal(scale, (np.abs(x).max(-1) / most).astype(np.float32))
    over = x / np.where(scale == 0, 1, scale)[..., None].astype(np.float64)
    near = np.rint(over) if form == INT8_ROWS else decode(encode(over, E4M3), E4M3)
    assert np.array_equal(elements(got), near)
    assert (np.abs(elements(got)).max(-1)[scale > 0] == most).all()
    assert (dequantise(got)[1, 3] == 0).all()


def test_what_all_the_forms_are_called():
    assert {*OF_8_BITS[BF16]} == {"int8_column_f32", "e4m3_column_f32"}
    assert {*OF_8_BITS[F16]} == {"int8_column_f32_f16", "e4m3_column_f32_f16"}
    assert not {*named_for(None, 4)} & {x for names in OF_8_BITS.values() for x in names}
    assert forms(8, E4M3) == {} and plain_weights(F16, 8) == "int8_column_f32_f16"
    assert {*OF_8_BITS[F16]} < {*every_name()} > {*named_for(None, 4)}
    for form in FORMATS:
        assert named(form.name) == form
    for name, form in OF_8_BITS[F16].items():
        assert named(form.format).name + "_f16" == name
        assert (form.words, form.pair_bytes, form.block_bytes, form.groups) == (16, 0, 8192, 0)
        assert form.factors


def held(**changes):
    of = {"codes": np.zeros((4, 32), np.uint8), "scales": np.ones((4, 1), np.uint32)}
    return Weights(**{"format": INT8_ROWS, **of} | changes)


@pytest.mark.parametrize(
    ("argument", "changes"),
    (
        ("codes dtype", {"codes": np.zeros((4, 32), np.int8)}),
        ("codes shape", {"codes": np.zeros((4, 0), np.uint8)}),
        ("K", {"codes": np.zeros((4, 33), np.uint8)}),
        ("scales dtype", {"scales": np.ones((4, 1), np.float32)}),
        ("scales shape", {"scales": np.ones((4, 2), np.uint32)}),
        ("scales", {"scales": np.full((4, 1), 0x7F800000, np.uint32)}),
        ("zeros", {"zeros": np.zeros((4, 1), np.uint8)}),
        ("tensor_scale", {"tensor_scale": 2.0}),
        ("codes", {"format": FP8_ROWS, "codes": np.full((4, 32), 0x7F, np.uint8)}),
        ("codes", {"format": FP8_ROWS, "codes": np.full((4, 32), 0xFF, np.uint8)}),
    ),
)
def test_arrays_that_are_no_weights_are_refused(argument, changes):
    with pytest.raises(ArgumentError) as e:
        held(**changes)
    assert e.value.argument == argument


def test_a_code_that_is_no_number_is_named():
    codes = np.zeros((4, 32), np.uint8)
    codes[2, 5] = 0xFF
    with pytest.raises(ArgumentError, match=r"^codes='0xff': is not finite, at \(2, 5\)"):
        held(format=FP8_ROWS, codes=codes)


@pytest.mark.parametrize(
    ("argument", "fields"),
    (
        ("element", {"element": "int3"}),
        ("group", {"group": 128}),
        ("scale", {"scale": "bf16"}),
        ("zeros", {"zeros": True}),
    ),
)
@pytest.mark.parametrize("element", ("int8", "e4m3"))
def test_formats_that_are_none_are_refused(element, argument, fields):
    with pytest.raises(ArgumentError) as e:
        Format(**{"element": element, "group": 0, "scale": "f32"} | fields)
    assert e.value.argument == argument


@formats
def test_what_no_kernel_takes_is_refused(form):
    given = drawn(form, 64, 128)
    with pytest.raises(ArgumentError, match=r"^to="):
        pack(given, E4M3)
    with pytest.raises(ArgumentError, match=r"^group=32: must be None"):
        grouped(given, 32)
    assert grouped(given) is given
    with pytest.raises(ArgumentError, match=r"^format="):
        rescaled(given, "bf16")


def test_a_scale_that_no_factor_is_of_is_refused():
    """Of FP8 by FP16 a factor is 2^8 of the scale."""
    scales = np.full((64, 1), 2.0**120, np.float32).view(np.uint32)
    given = Weights(format=FP8_ROWS, codes=np.zeros((64, 128), np.uint8), scales=scales)
    assert (pack(given, BF16).scales == 2.0**120).all()
    with pytest.raises(ArgumentError, match=r"^scales=.*: times 256 must be a float32"):
        pack(given, F16)


@pytest.mark.parametrize(
    "changes", ({"to": E4M3}, {"group": 32}, {"zeros": True}, {"element": "s8"})
)
def test_forms_that_are_none_are_refused(changes):
    with pytest.raises(IRError):
        Form(**{"element": "int8", "to": BF16, "group": 0} | changes)


def test_a_kernel_has_its_fields_in_its_name():
    kernel = Unpacking(element="e4m3", to=F16, group=0)
    assert kernel.name == "unpack_e4m3_column_to_f16"
    assert source(kernel) == source(Unpacking(element="e4m3", to=F16, group=0))
