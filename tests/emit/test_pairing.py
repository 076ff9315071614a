"""Generated pairings: the PTX that NVRTC makes of them, emulated, against NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from combine_reference import placed

from gemmgen.emulator import EmulatorError, GlobalMemory, launch, load
from gemmgen.pairing import TF32_LOST, VECTOR, Pairing, source
from gemmgen.runtime.nvrtc import compile_cubin, compile_ptx

pytestmark = pytest.mark.nvrtc
POISON, GRID = 0x5A, 3
KERNELS = [
    Pairing(tf32=tf32, aligned=aligned) for tf32 in (False, True) for aligned in (False, True)
]
SPECIAL = np.array([0, 1, 0x80000000, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F8000, 0x7F7F7FFF,
    0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0x3F800000, 0x3F801000, 0x3F800FFF, 0x3F803000,
    0x3F808000, 0x3F818000, 0x3F807FFF, 0xBF801000], np.uint32)  # fmt: skip


@pytest.fixture(autouse=True)
def compiler():
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


def bf16(x):
    """Bits of float64 numbers rounded to BF16, to nearest even, by counting in units of the last place."""
    x = np.asarray(x, np.float64)
    exponent = np.maximum(np.frexp(x)[1] - 1, -126)
    unit = np.ldexp(1.0, exponent - 7)
    return (np.rint(x / unit) * unit).astype(np.float32).view(np.uint32) >> 16


def reference(bits, all_rows, tf32):
    """uint16 [2 * all_rows, columns] of uint32 [rows, columns]; a NaN's own bits are not told."""
    with np.errstate(all="ignore"):
        number = bits.view(np.float32).astype(np.float64)
        finite = np.isfinite(number)
        if tf32:
            unit = np.ldexp(
                1.0, np.maximum(np.frexp(np.where(finite, number, 0))[1] - 1, -126) - 10
            )
            away = np.trunc(abs(number) / unit + 0.5) * unit
            number = np.where(finite & (away < 2.0**128), np.copysign(away, number), number)
        most = (2 - 2.0**-7) * 2.0**127
        high = bf16(np.where(finite, np.clip(number, -most, most), 0))
        rest = bf16(np.where(finite, number, 0) - (high << 16).view(np.float32).astype(np.float64))
        high = np.where(finite, high, np.where(np.isnan(number), 0x7FFF, bits >> 16))
    assert 23 - TF32_LOST == 10
    pairs = np.zeros((2 * all_rows, bits.shape[1]), np.uint16)
    pairs[0 : 2 * len(bits) : 2], pairs[1 : 2 * len(bits) : 2] = high, rest
    return pairs


def emulate(bits, all_rows, c, beside=0, text=None):
    memory, (rows, columns) = GlobalMemory(), bits.shape
    pitch, stride = columns + beside, columns + 2 * beside
    at = memory.allocate(np.full(2 * 2 * all_rows * stride + 32, POISON, np.uint8))
    values = {"x": placed(memory, bits, pitch), "pairs": at, "x_stride": pitch}
    values |= {"pairs_stride": stride, "rows": rows, "all_rows": all_rows, "columns": columns}
    entry = load(compile_ptx(text or source(c), c.name)).entries[c.name]
    given = [values[p.name] for p in c.params]
    launch(entry, grid=GRID, block=c.threads, shared_bytes=0, params=given, memory=memory)
    found = memory.read(at, 4 * all_rows * stride + 32)
    assert (found[-32:] == POISON).all()
    found = found[:-32].view(np.uint16).reshape(2 * all_rows, stride)
    assert (found[:, columns:] == POISON * 0x101).all()
    return found[:, :columns].copy()


def same(found, wanted):
    """To the bit, but for which NaN."""
    nan = (wanted & 0x7FFF) > 0x7F80
    return (((found & 0x7FFF) > 0x7F80) == nan).all() and (found[~nan] == wanted[~nan]).all()


def drawn(rows, columns, seed=0):
    """Any bits, and numbers that are hard to round."""
    bits = np.random.default_rng(seed).integers(0, 2**32, (rows, columns), np.uint32)
    flat = bits.reshape(-1)
    flat[: len(SPECIAL)] = SPECIAL[: flat.size]
    return bits


@pytest.mark.parametrize("beside", (0, 8))
@pytest.mark.parametrize("zeros", (0, 1))
@pytest.mark.parametrize("c", KERNELS, ids=lambda c: c.name)
def test_pairs(c, zeros, beside):
    bits = drawn(24, 136)
    found = emulate(bits, 24 + zeros, c, beside)
    assert same(found, reference(bits, 24 + zeros, c.tf32))


@pytest.mark.parametrize("tf32", (False, True))
@pytest.mark.parametrize("columns", (1, 5, 31))
def test_rows_of_any_length(columns, tf32):
    bits = drawn(7, columns, seed=columns)
    found = emulate(bits, 8, Pairing(tf32=tf32, aligned=False), beside=3)
    assert same(found, reference(bits, 8, tf32))


def test_a_pair_of_tf32_is_exact_and_of_fp32_close():
    """With 11 significant bits nothing is lost; with 24 2^-17: high is off by at most 2^-8 of a number's power of two, low by 2^-9 of that."""
    bits = np.random.default_rng(1).normal(size=(16, 64)).astype(np.float32).view(np.uint32)
    numbers = bits.view(np.float32).astype(np.float64)
    for tf32 in (False, True):
        parts = (emulate(bits, 16, Pairing(tf32=tf32, aligned=True)).astype(np.uint32) << 16).view(
            np.float32
        )
        total = parts[0::2].astype(np.float64) + parts[1::2]
        if tf32:
            assert (total.astype(np.float32).view(np.uint32) & (1 << TF32_LOST) - 1 == 0).all()
            assert (abs(total - numbers) <= abs(numbers) * 2.0**-11).all()
        else:
            assert (abs(total - numbers) <= abs(numbers) * 2.0**-17).all()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 * row + 1, pairs_stride", "2 * row, pairs_stride"),
        ("if (row < rows)", "if (row < all_rows)"),
        (" number - __uint_as_float(high << 16)", " number"),
        ("fminf(fmaxf(number, -GREATEST), GREATEST)", "number"),
        ("(1u << 12)", "(1u << 11)"),
    ],
)
def test_a_changed_text_is_found(old, new):
    c = Pairing(tf32=True, aligned=False)
    assert old in source(c)
    bits = drawn(9, 33)
    text = source(c).replace(old, new)
    try:
        found = emulate(bits, 10, c, text=text)
    except EmulatorError:
        return
    assert not same(found, reference(bits, 10, True))


@pytest.mark.parametrize("c", KERNELS, ids=lambda c: c.name)
def test_they_compile_without_spills(c):
    cubin = compile_cubin(source(c), c.name)
    assert cubin.name == c.name and c.tiles(25, 28672) == -(-25 * 28672 // c.vector // 128)
    assert len({x.name for x in KERNELS}) == 4 and c.vector == (VECTOR if c.aligned else 1)
