"""Weights as a warpgroup reads them: every code lies where the tensor core wants it, decodes to the bit, and comes back."""

from __future__ import annotations

import numpy as np
import pytest
from packed_weights import KINDS, NAMES, drawn, every_scale, wanted

from gemmgen import emulator
from gemmgen.codes import code_type, decode, encode
from gemmgen.emulator.products import words_of_a
from gemmgen.errors import ArgumentError, IRError
from gemmgen.formats import (
    MXFP4,
    NVFP4,
    Weights,
    dequantise,
    grouped,
    int4,
    nibbles,
    quantise,
    widest_group,
)
from gemmgen.formats.multiplied import multiplied, rescaled
from gemmgen.formats.packing import numbers, pack, places, tables, unpack
from gemmgen.ir.codings import CODINGS, LOOKUP, SIZES
from gemmgen.ir.dtypes import BF16, E4M3, F16
from gemmgen.ir.packed import OF_16_BITS
from gemmgen.unpacking import Unpacking, source

kinds = pytest.mark.parametrize(("form", "to"), KINDS, ids=NAMES)


def wide(span, codes=0x11):
    """A row whose exponents span so much, in a group of `codes`."""
    held = np.full((1, 64), 0x77, np.uint8)
    held[:, 16:32] = codes
    return Weights(format=MXFP4, codes=held, scales=np.array([[100, 100 - span, 99, 98]], np.uint8))


def nvfp4(scales, codes=0x25, tensor_scale=0.75):
    """A row of as many groups as there are scales, in bits."""
    held = np.full((1, 8 * len(scales)), codes, np.uint8)
    return Weights(
        format=NVFP4, codes=held, scales=np.array([scales], np.uint8), tensor_scale=tensor_scale
    )


@pytest.mark.parametrize("coding", CODINGS, ids=lambda c: f"{c.element}-{c.to}")
def test_codes_lie_where_a_fragment_has_them(coding):
    """Where the emulator's tensor core, which knows nothing of packing, reads A's registers."""
    row, column, bits = places(coding)
    of_a, word_of_k = words_of_a()
    for part, thread, step, j in np.ndindex(2, 128, 4, 8):
        register, half = j % 4, j // 4
        word = (part * 128 + thread) * 4 + step
        assert row[word, j] == of_a[register, thread]
        assert column[word, j] == 16 * (4 * part + step) + 2 * word_of_k[register, thread] + half
        assert (bits[word, j, 1:] // 16 == half).all(), "a sign may lie in the other half"
    seen = np.zeros((64, 128), int)
    np.add.at(seen, (row, column), 1)
    assert (seen == 1).all()
    assert all(sorted(x.ravel().tolist()) == list(range(32)) for x in bits)


@pytest.mark.parametrize("code", (LOOKUP, SIZES), ids=lambda c: c.element)
def test_codes_for_bytes_lie_where_a_fragment_has_them(code):
    """A register's four bytes from one word; a step of 32 of K from two."""
    row, column, bits = places(code)
    of_a, word_of_k = words_of_a()
    for part, thread, i, j in np.ndindex(2, 128, 4, 8):
        word, register = (part * 128 + thread) * 4 + i, i % 2 + 2 * (j // 4)
        assert row[word, j] == of_a[register, thread]
        assert column[word, j] == 32 * (2 * part + i // 2) + 4 * word_of_k[register, thread] + j % 4
    seen = np.zeros((64, 128), int)
    np.add.at(seen, (row, column), 1)
    assert (seen == 1).all()
    assert all(sorted(x.ravel().tolist()) == list(range(32)) for x in bits)


@pytest.mark.parametrize("code", (*CODINGS, LOOKUP, SIZES), ids=lambda c: f"{c.element}-{c.to}")
def test_a_words_codes_have_their_own_bits_the_same_in_every_word(code):
    _, _, bits = places(code)
    assert (bits == bits[0]).all() and sorted(bits[0].ravel()) == [*range(32)]
    for value in range(16):
        wanted = [sum((value >> 3 - i & 1) << int(b) for i, b in enumerate(x)) for x in bits[0]]
        assert tables(code)[:, value].tolist() == wanted


@kinds
def test_what_is_packed_comes_back(form, to):
    for rows, columns, lead in (
        (64, 128, ()),
        (200, 384, (3,)),
        (72, 32 * 5 if form.group <= 32 else 256, ()),
    ):
        given = drawn(form, rows, columns, lead=lead)
        packed = pack(given, to)
        got = unpack(packed)
        assert packed.blocks.shape[:-1] == (*lead, -(-rows // 64), -(-columns // 128))
        assert np.array_equal(got.codes, given.codes)
        assert np.array_equal(dequantise(got), dequantise(given))
        assert packed.bases is not None or np.array_equal(got.scales, given.scales)
        assert got.tensor_scale == given.tensor_scale
        assert (got.zeros is None and given.zeros is None) or np.array_equal(got.zeros, given.zeros)


@pytest.fixture
def compiler():
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


def emulated(packed):
    """What the kernel for it writes: codes of numbers [rows, columns]."""
    from gemmgen.runtime.nvrtc import compile_ptx

    form = packed.format
    kernel = Unpacking(element=form.element, to=packed.to, group=form.group, zeros=form.zeros)
    assert packed.blocks.shape[-1] == kernel.block_bytes
    memory = emulator.GlobalMemory()
    blocks = memory.allocate(np.ascontiguousarray(packed.blocks).reshape(-1))
    size = packed.to.bytes * packed.rows * packed.columns
    out = memory.allocate(np.full(size, 0xCD, np.uint8))
    emulator.launch(
        emulator.load(compile_ptx(source(kernel), kernel.name)).entries[kernel.name],
        grid=min(5, kernel.tiles(packed.rows, packed.columns)),
        block=kernel.threads,
        cluster=1,
        shared_bytes=0,
        params=(blocks, out, packed.rows, packed.columns),
        memory=memory,
    )
    return memory.read(out, size).view(code_type(packed.to)).reshape(packed.rows, packed.columns)


@pytest.mark.nvrtc
@kinds
def test_a_kernel_decodes_what_was_packed(compiler, form, to):
    """Rows and columns that end inside of a block."""
    given = drawn(form, 72, 160 if form.group <= 32 else 384, seed=1)
    packed = pack(given, to)
    assert np.array_equal(emulated(packed), wanted(given, packed))


@pytest.mark.nvrtc
@pytest.mark.parametrize(("form", "to"), [x for x in KINDS if x[0].group <= 32], ids=[n for n, x in zip(NAMES, KINDS, strict=True) if x[0].group <= 32])  # fmt: skip
def test_every_code_with_every_scale(compiler, form, to):
    given = every_scale(form, to)
    packed = pack(given, to)
    assert np.array_equal(emulated(packed), wanted(given, packed))


@pytest.mark.parametrize("to", [BF16, F16, E4M3])
def test_mxfp4_is_multiplied_exactly(to):
    given = drawn(MXFP4, 64, 128)
    assert np.array_equal(multiplied(given, to), dequantise(given))


def test_a_row_may_span_what_e4m3_does():
    packed = pack(wide(11), E4M3)
    assert packed.bases.tolist() == [100 - 127 - 6]
    assert np.array_equal(dequantise(unpack(packed)), dequantise(wide(11)))
    assert np.array_equal(
        dequantise(unpack(pack(wide(90, 0x80), E4M3))), dequantise(wide(90, 0x80))
    )


def test_a_row_may_span_what_fp16_does():
    """As numbers of FP16, from 1/2 * 2^-23 to 6 * 2."""
    packed = pack(wide(24), F16)
    assert packed.bases.tolist() == [100 - 127 - 1]
    values = numbers(packed)
    assert np.array_equal(decode(encode(values, F16), F16), values)
    assert np.array_equal(np.ldexp(values, packed.bases[:, None]), dequantise(wide(24)))
    assert np.array_equal(dequantise(unpack(packed)), dequantise(wide(24)))
    assert np.array_equal(dequantise(unpack(pack(wide(90, 0x80), F16))), dequantise(wide(90, 0x80)))


@pytest.mark.parametrize("to", OF_16_BITS, ids=str)
def test_every_scale_of_nvfp4_is_packed(to):
    """0, of which codes are not kept, subnormal ones, and up to 448."""
    given = nvfp4([*range(0x7F)])
    packed = pack(given, to)
    assert packed.factor == 0.75 * 2**7
    values = numbers(packed)
    assert np.array_equal(values * packed.factor, dequantise(given)[:, : values.shape[1]])
    assert np.array_equal(decode(encode(values, to), to), values)
    got = unpack(packed)
    assert np.array_equal(got.scales, given.scales) and got.tensor_scale == given.tensor_scale
    assert (nibbles(got.codes)[:, :16] == 0).all()
    assert np.array_equal(nibbles(got.codes)[:, 16:], nibbles(given.codes)[:, 16:])


def test_integers_are_multiplied_rounded_once():
    given = drawn(int4(128, "bf16"), 64, 128)
    assert np.array_equal(multiplied(given), decode(encode(dequantise(given), BF16), BF16))
    assert not np.array_equal(multiplied(given), dequantise(given))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("to", OF_16_BITS, ids=str)
@pytest.mark.parametrize(("columns", "group"), [(384, 128), (128, 128), (192, 64), (160, 32)])
def test_scales_of_whole_rows_are_packed_as_those_of_groups(columns, group, to, zeros):
    """The same numbers, to the bit, in the blocks of weights that have these scales for each group."""
    given = drawn(int4(0, to.name, zeros=zeros), 72, columns, lead=(2,))
    packed = pack(given, to)
    form = int4(group, to.name, zeros=zeros)
    assert packed.format == form and (packed.rows, packed.columns) == (72, columns)
    assert np.array_equal(numbers(packed), multiplied(given, to))
    assert np.array_equal(dequantise(unpack(packed)), dequantise(given))
    shape = (2, 72, columns // group)
    said = np.broadcast_to(given.scales, shape).copy()
    held = np.broadcast_to(given.zeros, shape).copy() if zeros else None
    by_hand = Weights(format=form, codes=given.codes, scales=said, zeros=held)
    assert np.array_equal(packed.blocks, pack(by_hand, to).blocks)


@pytest.mark.parametrize(("group", "to"), [(0, 32), (0, 64), (128, 32), (64, 64)])
def test_scales_are_those_of_narrower_groups(group, to):
    given = drawn(int4(group, "f32", zeros=True), 8, 256, lead=(2,))
    got = grouped(given, to)
    assert got.format == int4(to, "f32", zeros=True) and got.codes is given.codes
    assert np.array_equal(dequantise(got), dequantise(given))
    assert grouped(got) is got


@pytest.mark.parametrize(
    ("group", "columns", "to"),
    [(0, 192, 128), (64, 128, 128), (0, 128, 16), (0, 128, 0), (0, 128, True), (0, 128, "32")],
)
def test_groups_that_do_not_divide_are_refused(group, columns, to):
    with pytest.raises(ArgumentError, match=r"must be 32 or 64 or 128 and divide the") as e:
        grouped(drawn(int4(group), 8, columns), to)
    assert e.value.argument == "group"


def test_formats_of_one_group_have_no_other():
    given = drawn(MXFP4, 8, 128)
    assert grouped(given) is given
    assert grouped(given, 32).format == MXFP4
    for form in (MXFP4, NVFP4):
        with pytest.raises(ArgumentError):
            grouped(drawn(form, 8, 128), 64)


def test_the_widest_group_divides_all():
    assert [widest_group(k) for k in (32, 64, 96, 128, 320, 4096)] == [32, 64, 32, 128, 64, 128]
    assert widest_group(4096, 1408, 320) == 64 and widest_group(2048, 1376) == 32
    with pytest.raises(ArgumentError, match=r"^K=1400: must be a multiple of 32: a whole row's"):
        widest_group(4096, 1400)


def test_scales_are_rounded_to_another_dtype():
    given = quantise(np.random.default_rng(0).standard_normal((64, 128)), int4(128, "f16"))
    got = rescaled(given, "bf16")
    assert got.format == int4(128, "bf16") and np.array_equal(got.codes, given.codes)
    assert np.array_equal(decode(got.scales, BF16), decode(encode(decode(given.scales, F16), BF16), BF16))  # fmt: skip
    assert np.array_equal(rescaled(given, "f32").scales.view(np.float32), decode(given.scales, F16))


def test_what_is_past_the_end_is_zero():
    """Of codes: scales there may be anything."""
    form = int4(32, "bf16")
    blocks = pack(drawn(form, 8, 32), BF16)
    whole = unpack(type(blocks)(format=form, to=BF16, blocks=blocks.blocks, rows=64, columns=128))
    assert (nibbles(whole.codes)[8:] == 8).all() and (nibbles(whole.codes)[:, 32:] == 8).all()


@pytest.mark.parametrize(
    ("argument", "weights", "to"),
    [
        ("scales", wide(25), F16),
        ("scales", drawn(int4(128, "bf16"), 64, 128), E4M3),
        ("to", drawn(int4(64, "f32"), 64, 128), E4M3),
        ("to", drawn(int4(128, "f32", zeros=True), 64, 128), E4M3),
        ("scales", wide(15), E4M3),
        ("to", quantise(np.ones((64, 128)), NVFP4), E4M3),
        ("scales", nvfp4([0x30, 0xB0]), BF16),
        ("tensor_scale", nvfp4([0x30], tensor_scale=2.0**127), BF16),
        ("scales", drawn(int4(128, "f16"), 64, 128), BF16),
        ("K", quantise(np.ones((64, 72)), int4(0, "bf16")), BF16),
        ("scales", drawn(int4(0, "f16"), 64, 128), BF16),
        ("group", drawn(int4(0, "f32"), 64, 192), E4M3),
        ("scales", quantise(np.full((64, 128), 40.0), MXFP4), BF16),
    ],
)
def test_what_no_kernel_takes_is_refused(argument, weights, to):
    with pytest.raises(ArgumentError) as e:
        pack(weights, to)
    assert e.value.argument == argument


def test_scales_of_others_are_not_rounded():
    with pytest.raises(ArgumentError):
        rescaled(drawn(MXFP4, 64, 128), "bf16")
    with pytest.raises(ArgumentError):
        rescaled(Weights(format=int4(128, "f32"), codes=np.zeros((1, 64), np.uint8), scales=np.full((1, 1), 1e9, np.float32).view(np.uint32)), "f16")  # fmt: skip


@pytest.mark.parametrize("changes", [{"group": 16}, {"to": E4M3, "group": 64}, {"element": "e2m1", "group": 128}, {"element": "e2m1", "zeros": True}, {"element": "int8"}])  # fmt: skip
def test_kernels_that_are_none_are_refused(changes):
    with pytest.raises(IRError):
        Unpacking(**{"element": "int4", "to": BF16, "group": 128} | changes)


def test_a_kernel_has_its_fields_in_its_name():
    kernel = Unpacking(element="int4", to=F16, group=64, zeros=True)
    assert kernel.name == "unpack_int4_64_zeros_to_f16"
    assert source(kernel) == source(Unpacking(element="int4", to=F16, group=64, zeros=True))
