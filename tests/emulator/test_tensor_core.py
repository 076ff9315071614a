"""One wgmma, bit for bit, against rational arithmetic; descriptors and tiles against brute force."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import probe_wgmma as probe
import pytest

from gemmgen.emulator.descriptor import Descriptor, addresses, decode_descriptor
from gemmgen.emulator.errors import ProtocolError
from gemmgen.emulator.operand_formats import FORMATS, decode
from gemmgen.emulator.tensor_core import ARITHMETIC, Arithmetic, mma, mma_block

FLOAT_PAIRS = tuple(pair for pair in probe.PAIRS if pair != ("s8", "s8"))
DATA = Path(__file__).parents[1] / "data"
CANONICAL_NAN = 0x7FFFFFFF

# exponent bits, fraction bits, whether the top exponent is for infinities and NaN
IEEE = {"e4m3": (4, 3, False), "e5m2": (5, 2, True), "f16": (5, 10, True), "bf16": (8, 7, True)}


def bits(values) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint32)


# --- a second, slow implementation ------------------------------------------------------------


def number(code: int, exponent_bits: int, fraction_bits: int, ieee: bool):
    """(Fraction or float special, exponent with subnormals clamped)."""
    sign = -1 if code >> (exponent_bits + fraction_bits) else 1
    field = code >> fraction_bits & (1 << exponent_bits) - 1
    fraction = code & (1 << fraction_bits) - 1
    bias = (1 << (exponent_bits - 1)) - 1
    if field == (1 << exponent_bits) - 1:
        if ieee:
            return (math.nan if fraction else sign * math.inf), 0
        if fraction == (1 << fraction_bits) - 1:
            return math.nan, 0
    exponent = max(field, 1) - bias
    significand = Fraction(fraction, 1 << fraction_bits) + (1 if field else 0)
    return sign * significand * Fraction(2) ** exponent, exponent


def dot(a, b, c_bits: int | None, a_type: str, b_type: str, aligned: int, kept: int) -> int:
    """One output's bits."""
    xs = [number(int(v), *IEEE[a_type]) for v in a]
    ys = [number(int(v), *IEEE[b_type]) for v in b]
    c, c_exponent = number(c_bits or 0, 8, 23, True)
    if any(isinstance(v, float) for v, _ in (*xs, *ys, (c, 0))):
        total = sum(special(x, y) for (x, _), (y, _) in zip(xs, ys, strict=True))
        total += c if isinstance(c, float) else 0.0
        return CANONICAL_NAN if math.isnan(total) else int(bits(np.float32([total]))[0])
    terms = [(x * y, i + j) for (x, i), (y, j) in zip(xs, ys, strict=True)] + [(c, c_exponent)]
    largest = max([-132, *(e for v, e in terms if v)])
    unit = Fraction(2) ** (largest - aligned)
    total = sum(math.trunc(v / unit) for v, _ in terms) * unit
    return rounded_toward_zero(total, kept)


def special(x, y) -> float:
    def sign(v):
        return v if isinstance(v, float) else float((v > 0) - (v < 0))

    return sign(x) * sign(y) if isinstance(x, float) or isinstance(y, float) else 0.0


def rounded_toward_zero(value: Fraction, kept: int) -> int:
    exponent = -126
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    if exponent > 127:
        return int(bits(np.float32([math.copysign(math.inf, value)]))[0])
    steps = math.trunc(value / Fraction(2) ** (exponent - kept))
    magnitude = (exponent + 126 << 23) + (abs(steps) << (23 - kept))
    return magnitude | (0x80000000 if value < 0 and magnitude else 0)


def tile(kind: str, rows: int, how: str, rng) -> np.ndarray:
    return probe.codes(how, kind, (1, rows, FORMATS[kind].k), rng)[0]


def addend(how: str, a, b, pair, rng) -> np.ndarray | None:
    if how == "none":
        return None
    case = probe.Case(*pair, "", how)
    with np.errstate(all="ignore"):
        return probe.addend(case, a[None], b[None], rng)[0].astype(np.float32)


@pytest.mark.parametrize("how", probe.OPERANDS)
@pytest.mark.parametrize("pair", FLOAT_PAIRS, ids="-".join)
def test_every_bit_is_as_in_rational_arithmetic(pair, how):
    rng, rules = np.random.default_rng(1), ARITHMETIC[pair[0]]
    a, b = tile(pair[0], 3, how, rng), tile(pair[1], 4, how, rng)
    for c_how in probe.ADDENDS:
        c = addend(c_how, a, b, pair, rng)
        got = bits(mma(a, b, c, *pair))
        for i, j in np.ndindex(got.shape):
            c_bits = None if c is None else int(bits(c)[i, j])
            want = dot(a[i], b[j], c_bits, *pair, rules.aligned, rules.kept)
            assert got[i, j] == want, (c_how, i, j, hex(got[i, j]), hex(want))


@pytest.mark.parametrize("kind", FORMATS)
def test_decode(kind):
    codes = np.arange(1 << FORMATS[kind].bits).astype(np.uint16)
    want = [float(number(int(code), *IEEE[kind])[0]) for code in codes]
    got = decode(codes, kind)
    np.testing.assert_array_equal(got, want)
    assert (np.signbit(got) == (codes >> (FORMATS[kind].bits - 1)))[~np.isnan(got)].all()


# --- properties -------------------------------------------------------------------------------


def integer_codes(kind: str, shape, top: int, rng) -> np.ndarray:
    return probe.encode(rng.integers(-top, top + 1, shape).astype(np.float64), kind).astype(
        np.uint8 if FORMATS[kind].bits == 8 else np.uint16
    )


@pytest.mark.parametrize("top", (1, 2, 3))
@pytest.mark.parametrize("pair", FLOAT_PAIRS, ids="-".join)
def test_small_integers_are_exact(pair, top):
    rng, k = np.random.default_rng(top), FORMATS[pair[0]].k
    a, b = (integer_codes(t, (r, 4 * k), top, rng) for t, r in zip(pair, (64, 24), strict=True))
    c = rng.integers(-99, 100, (64, 24)).astype(np.float32)
    want = c + decode(a, pair[0]) @ decode(b, pair[1]).T
    np.testing.assert_array_equal(mma_block(a, b, c, *pair, 4), want)


@pytest.mark.parametrize("pair", probe.PAIRS, ids="-".join)
@pytest.mark.parametrize("how", ("ternary", "normal", "wide", "sparse", "zeros", "rare_special"))
def test_a_block_is_its_steps_chained(pair, how):
    rng, steps = np.random.default_rng(2), 4
    if pair[0] == "s8":
        a, b = (rng.integers(0, 256, (r, 128)).astype(np.uint8) for r in (64, 40))
        c = rng.integers(-(2**31), 2**31, (64, 40)).astype(np.int32)
    else:
        shape = [(1, r, steps * FORMATS[pair[0]].k) for r in (64, 40)]
        a, b = (probe.codes(how, t, s, rng)[0] for t, s in zip(pair, shape, strict=True))
        c = rng.integers(-64, 64, (64, 40)).astype(np.float32) / 16
    k = a.shape[1] // steps
    scaled = () if pair[0] == "s8" else (c * np.float32(s) for s in (-0.0, 2.0**10, 2.0**-20))
    for start in (None, c, *scaled):
        want = start
        for i in range(steps):
            step = slice(i * k, (i + 1) * k)
            want = mma(a[:, step], b[:, step], want, *pair)
        np.testing.assert_array_equal(bits(mma_block(a, b, start, *pair, steps)), bits(want))


def test_exact_blocks_take_no_steps(monkeypatch):
    monkeypatch.setattr("gemmgen.emulator.tensor_core.mma", None)
    ones = np.full((64, 128), 0x38, np.uint8)
    assert (mma_block(ones, ones, None, "e4m3", "e4m3", 4) == 128).all()
    with pytest.raises(TypeError):
        mma_block(ones, ones, np.full((64, 64), 2.0**-13, np.float32), "e4m3", "e4m3", 4)


@pytest.mark.parametrize("unit", (-149, -140, -126, -30, 0, 11, 12, 13, 14, 20))
def test_a_block_notices_what_does_not_fit_its_width(unit):
    """One odd multiple of 2^unit beside ones: exact at some distances and not at others."""
    rng = np.random.default_rng(3)
    a, b = (integer_codes("e4m3", (r, 64), 1, rng) for r in (8, 8))
    c = np.full((8, 8), 3 * 2.0**unit, np.float32)
    want = mma(a[:, 32:], b[:, 32:], mma(a[:, :32], b[:, :32], c, "e4m3", "e4m3"), "e4m3", "e4m3")
    np.testing.assert_array_equal(bits(mma_block(a, b, c, "e4m3", "e4m3", 2)), bits(want))


@pytest.mark.parametrize("pair", probe.PAIRS, ids="-".join)
def test_outputs_depend_on_their_own_row_and_column_only(pair):
    rng = np.random.default_rng(4)
    x = probe.inputs(probe.Case(*pair, "all", "matching"))
    a, b, c = x.a[0], x.b[0], x.c[0]
    i, j = rng.permutation(64), rng.permutation(256)
    d = bits(mma(a, b, c, *pair))
    moved = bits(mma(a[i], b[j], c[i][:, j], *pair))
    np.testing.assert_array_equal(moved, d[i][:, j])


def one_output(values_a, values_b, c, kind="e4m3", rules=None) -> float:
    k = FORMATS[kind].k
    a, b = (
        probe.encode(np.float64([v + [0.0] * (k - len(v))]), kind) for v in (values_a, values_b)
    )
    c = None if c is None else np.float32([[c]])
    return float(mma(a, b, c, kind, kind, rules)[0, 0])


def test_truncation():
    ulp = 2.0**-13
    assert one_output([1.0], [1.0], ulp) == 1 + ulp
    assert one_output([1.0], [1.0], ulp * 1.99) == 1 + ulp
    assert one_output([1.0], [1.0], ulp / 2) == 1
    assert one_output([1.0], [1.0], -ulp / 2) == 1  # toward zero, not down
    assert one_output([1.0], [1.0], -ulp * 1.5) == 1 - ulp
    assert one_output([448.0, 2.0**-6], [1.0, 1.0], None) == 448  # 2^-6 < 2^(8 - 13) is lost
    assert one_output([448.0, 2.0**-5], [1.0, 1.0], None) == 448 + 2.0**-5
    assert one_output([1.0], [1.0], 2.0**-25, "bf16") == 1  # aligned, then cut to 24 bits
    assert one_output([1.0, -1.0], [1.0, 1.0], 2.0**-25, "bf16") == 2.0**-25
    assert one_output([1.0, -1.0], [1.0, 1.0], 2.0**-26, "bf16") == 0


def test_subnormal_operands_align_as_the_least_normal_exponent():
    tiny = 2.0**-9  # e4m3, aligned as 2^-6; times 448 = 1.75 * 2^8 as 2^2
    assert one_output([tiny], [448.0], 2.0**-11) == tiny * 448 + 2.0**-11
    assert one_output([tiny], [448.0], 2.0**-12) == tiny * 448


def test_switches():
    def with_(**switch):
        return Arithmetic(aligned=13, kept=13, **switch)

    assert one_output([0.0], [448.0], 2.0**-12, rules=with_()) == 2.0**-12
    assert one_output([0.0], [448.0], 2.0**-12, rules=with_(zero="field")) == 0
    assert one_output([1.0], [1.0], -(2.0**-14), rules=with_(cut="floor")) == 1 - 2.0**-13
    assert one_output([1.0], [1.0], 2.0**-14, rules=with_(c_aligned=14)) == 1
    up = with_(c_aligned=14, rounding="nearest")
    assert one_output([1.0], [1.0], 3 * 2.0**-14, rules=up) == 1 + 2.0**-12
    assert one_output([0.0], [0.0], 2.0**-130, rules=with_()) == 2.0**-130
    assert one_output([0.0], [0.0], 2.0**-130, rules=with_(small_c="flushed")) == 0
    assert one_output([0.0], [0.0], 2.0**-130, rules=with_(small="flushed")) == 0
    signed = with_(zero_sign="signed", underflow_sign="kept")
    assert math.copysign(1, one_output([-0.0] * 32, [1.0] * 32, -0.0, rules=signed)) == -1
    assert math.copysign(1, one_output([-0.0] * 32, [1.0] * 32, -0.0)) == 1
    half = ARITHMETIC["bf16"]
    largest = Arithmetic(aligned=half.aligned, kept=half.kept, overflow="largest")
    big = [2.0**120]
    assert one_output(big, big, None, "bf16") == math.inf
    assert one_output(big, big, None, "bf16", largest) == np.finfo(np.float32).max


def test_int32_wraps():
    a, b = np.full((1, 32), 0x80, np.uint8), np.full((1, 32), 0x80, np.uint8)
    c = np.int32([[2**31 - 1]])
    assert mma(a, b, c, "s8", "s8")[0, 0] == 2**31 - 1 + 32 * 2**14 - 2**32
    assert mma(a, b, None, "s8", "s8").dtype == np.int32


def test_nans_are_canonical():
    nan = np.uint32([[0xFFC12345]]).view(np.float32)
    zero = np.zeros((1, 32), np.uint8)
    assert bits(mma(zero, zero, nan, "e4m3", "e4m3"))[0, 0] == CANONICAL_NAN


@pytest.mark.parametrize("path", sorted(DATA.glob("wgmma_*.npz")) or (None,))
def test_what_a_gpu_computed(path):
    if path is None:
        pytest.skip("no measurements in tests/data; tests/support/probe_wgmma.py makes them")
    pair = path.stem.split("_")[1:]
    with np.load(path) as measured:
        x = dict(measured)
    number_type = np.int32 if pair[0] == "s8" else np.float32
    for a, b, c, d, accumulate in zip(x["a"], x["b"], x["c"], x["d"], x["accumulate"], strict=True):
        got = mma(a, b, c.view(number_type) if accumulate else None, *pair)
        np.testing.assert_array_equal(bits(got), d)


# --- descriptors ------------------------------------------------------------------------------


def test_descriptor_round_trip():
    rng = np.random.default_rng(5)
    for swizzle, base_offset in ((0, 0), (32, 0), (64, 3), (128, 7), (128, 0)):
        start, leading, stride = (int(v) << 4 for v in rng.integers(0, 1 << 14, 3))
        d = Descriptor(
            start=start, leading=leading, stride=stride, base_offset=base_offset, swizzle=swizzle
        )
        assert decode_descriptor(probe.encoded(d)) == d


def test_descriptor_bits():
    d = decode_descriptor(0x12 | 1 << 16 | 64 << 32 | 1 << 62)
    assert d == Descriptor(start=0x120, leading=16, stride=1024, base_offset=0, swizzle=128)
    assert decode_descriptor(2 << 62).swizzle == 64
    assert decode_descriptor(3 << 62).swizzle == 32


@pytest.mark.parametrize("bit", (14, 15, 30, 31, 46, 47, 48, *range(52, 62), 64))
def test_reserved_bits_are_refused(bit):
    with pytest.raises(ProtocolError):
        decode_descriptor(1 << bit)


@pytest.mark.parametrize("swizzle_code", (0, 3))
def test_base_offsets_need_a_wide_swizzle(swizzle_code):
    with pytest.raises(ProtocolError):
        decode_descriptor(1 << 49 | swizzle_code << 62)


def test_base_offsets_are_not_modelled():
    with pytest.raises(ProtocolError):
        addresses(decode_descriptor(1 << 49 | 1 << 62), 64)


def copied(smem, base: int, box: np.ndarray, swizzle: int) -> None:
    """What the copy engine leaves of a [rows, span] box at `base`, one 16-byte chunk at a time."""
    rows, width = box.shape
    for row, chunk in product(range(rows), range(width // 16)):
        address = base + row * width + chunk * 16
        lines = {0: 1, 32: 2, 64: 4, 128: 8}[swizzle]
        moved = address // 16 ^ (address // 128 % lines)
        smem[moved * 16 : moved * 16 + 16] = box[row, chunk * 16 : chunk * 16 + 16]


@pytest.mark.parametrize("base", (0, 3072))
@pytest.mark.parametrize("rows", (8, 24, 64, 256))
@pytest.mark.parametrize("swizzle", (128, 64, 32, 0))
def test_k_major_tiles(swizzle, rows, base):
    """A K block of 128 bytes as slabs of one swizzle span; every 32-byte step of it."""
    tile = np.random.default_rng(6).integers(0, 256, (rows, 128)).astype(np.uint8)
    smem = np.zeros(base + rows * 128, np.uint8)
    span = swizzle or 16
    for slab in range(128 // span):
        copied(smem, base + slab * rows * span, tile[:, slab * span : (slab + 1) * span], swizzle)
    for k in range(0, 128, 32):
        d = Descriptor(
            start=base + k // span * rows * span + k % span,
            leading=16 if swizzle else rows * span,
            stride=8 * span,
            base_offset=0,
            swizzle=swizzle,
        )
        np.testing.assert_array_equal(smem[addresses(d, rows)], tile[:, k : k + 32])


@pytest.mark.parametrize("base", (0, 3072))
@pytest.mark.parametrize("rows", (64, 128, 192))
@pytest.mark.parametrize("swizzle", (128, 64, 32, 0))
def test_mn_major_tiles(swizzle, rows, base):
    """A [64 of K, rows] block of 16-bit elements as boxes of one swizzle span of rows."""
    block = np.random.default_rng(7).integers(0, 1 << 16, (64, rows)).astype(np.uint16)
    smem = np.zeros(base + block.nbytes, np.uint8)
    span = swizzle or 16
    box = 64 * span  # bytes
    for at in range(rows * 2 // span):
        columns = block[:, at * span // 2 : (at + 1) * span // 2]
        copied(smem, base + at * box, np.ascontiguousarray(columns).view(np.uint8), swizzle)
    for k in range(0, 64, 16):
        next_k, next_row = 8 * span, box
        d = Descriptor(
            start=base + k * span,
            leading=next_row if swizzle else next_k,
            stride=next_k if swizzle else next_row,
            base_offset=0,
            swizzle=swizzle,
        )
        got = smem[addresses(d, rows, transposed=True)].view(np.uint16)
        np.testing.assert_array_equal(got, block[k : k + 16].T)


def test_addresses_are_shared_and_read_only():
    d = Descriptor(start=2048, leading=16, stride=1024, base_offset=0, swizzle=128)
    assert addresses(d, 64) is addresses(d, 64)
    assert not addresses(d, 64).flags.writeable


# --- the probe's kernel -----------------------------------------------------------------------


def python(expression: str, **values: int) -> int:
    return eval(expression.replace("/", "//"), {}, values)


@pytest.mark.parametrize("rows", (probe.M, probe.N))
def test_the_probe_places_its_tiles_where_its_descriptors_look(rows):
    tile = np.random.default_rng(8).integers(0, 256, (rows, 32)).astype(np.uint8)
    smem = np.zeros(tile.nbytes, np.uint8)
    for chunk, values in enumerate(tile.reshape(-1, 16)):
        at = python(probe.CHUNK.format(leading=probe.leading(rows)), chunk=chunk)
        smem[at : at + 16] = values
    d = decode_descriptor(probe.constant_bits(rows))
    np.testing.assert_array_equal(smem[addresses(d, rows)], tile)


def test_the_probe_stores_every_output_once():
    where = {
        (python(probe.ROW, thread=t, i=i), python(probe.COLUMN, thread=t, i=i))
        for t, i in product(range(probe.THREADS), range(probe.REGISTERS))
    }
    assert where == set(np.ndindex(probe.M, probe.N))
    assert (python(probe.ROW, thread=37, i=6), python(probe.COLUMN, thread=37, i=6)) == (25, 10)


@pytest.mark.nvrtc
@pytest.mark.parametrize("pair", probe.PAIRS, ids="-".join)
def test_the_probe_compiles(pair):
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    nvrtc = pytest.importorskip("gemmgen.runtime.nvrtc")
    assert nvrtc.compile_cubin(probe.source(*pair), "probe").spill_bytes == 0
