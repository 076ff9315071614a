"""Generated kernels that find the largest numbers of rows: the PTX that NVRTC makes of them, emulated, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from largest_reference import emulate, reference

from gemmgen.codes import decode, encode
from gemmgen.emulator import IllegalAccess, Race, UninitializedRead
from gemmgen.errors import IRError
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32, FLOATS
from gemmgen.largest import BINS, HELD, MOST, Largest, source
from gemmgen.runtime.nvrtc import compile_cubin

nvrtc = pytest.mark.nvrtc


@pytest.fixture(autouse=True)
def compiler(request):
    if request.node.get_closest_marker("nvrtc"):
        pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


def drawn(rows, columns, dtype=F32, seed=0):
    x = np.random.default_rng(seed).standard_normal((rows, columns))
    return decode(encode(x, dtype), dtype)


def agree(x, count, **how):
    said = {n: how[n] for n in ("first", "end", "compact", "keys") if n in how}
    found = emulate(x, count, **how)
    assert np.array_equal(found, reference(x, count, **said))
    return found


@nvrtc
@pytest.mark.parametrize("count", (1, 7, 64, 699))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dtypes(dtype, count):
    """Of 16 bits many are equal: the first are taken."""
    agree(drawn(3, 700, dtype, count), count, dtype=dtype)


@nvrtc
@pytest.mark.parametrize("columns", (1, 3, 4, 5, 2047, 2048, 2049, 5001))
def test_numbers_of_columns(columns):
    """Around what the threads load at once; fewer than are asked for."""
    agree(drawn(2, columns, seed=columns), 40)
    agree(drawn(2, columns, BF16, columns), 40, dtype=BF16, pitch=-(-columns // 8) * 8 + 8)


@nvrtc
@pytest.mark.parametrize("compact", (False, True))
def test_windows(compact):
    """That begin between 16 bytes, are empty, end before they begin or behind all columns, or are as long as what is asked for."""
    most = 2**31 - 1
    first = (0, 1, 2, 3, 100, 690, 700, 350, 20, 5, 7, most, most, -3)
    end = (700, 650, 603, 90, 100, 900, 800, 300, 52, 38, most, -most - 1, most, 90)
    agree(drawn(14, 700), 32, first=first, end=end, compact=compact, keys=700 + 60 * compact)


@nvrtc
def test_one_table():
    x = drawn(4, 300)
    agree(x, 9, first=(0, 5, 250, 299))
    agree(x, 9, end=(0, 5, 250, 299))


ALIKE = {
    "all equal": lambda x: np.zeros_like(x),
    "two numbers": lambda x: (x > 1).astype(float),
    "equal in 12 bits": lambda x: 1 + np.abs(x) * 2.0**-8,
    "equal in 24 bits": lambda x: 1 + np.abs(x) * 2.0**-20,
    "integers": np.round,
    "negative ones": lambda x: -np.abs(x),
    "infinite ones": lambda x: np.where(x > 0.5, np.inf, np.where(x < 0, -np.inf, x)),
    "none": lambda x: np.where(x > 1, np.nan, x),
    "zeros of both signs": lambda x: np.where(x > 0, -0.0, 0.0),
}


@nvrtc
@pytest.mark.parametrize("made", ALIKE.values(), ids=ALIKE)
def test_numbers_that_many_bits_do_not_decide(made):
    """More of them than are held, so that further bits are counted, or none is left."""
    agree(made(drawn(2, 5000)).astype(np.float32).astype(np.float64), 300)


@nvrtc
@pytest.mark.parametrize("count", (HELD - 1, HELD, HELD + 1, MOST))
def test_as_many_as_there_may_be(count):
    x = np.round(drawn(1, MOST + 400) * 4)
    assert (x == 0).sum() < HELD < MOST == BINS
    agree(x, count)
    agree(np.zeros_like(x), count)


@nvrtc
def test_more_rows_than_ctas():
    """A CTA's memory is used again."""
    agree(drawn(7, 640), 50, grid=2)


WRONG = {
    "lists of the row before": (
        "        // All have read the lists: the next row's may come.\n        __syncthreads();\n",
        "",
    ),
    "one too many": (
        "        edge = found;\n",
        "        edge = found;\n        edge.wanted += 1;\n",
    ),
    "those alike are above": ("prefix > edge.prefix ? 1 :", "prefix >= edge.prefix ? 1 :"),
    "one of equal ones too few": ("alike < inner.wanted", "alike + 1 < inner.wanted"),
    "fewer bits of a round": ("((1u << BITS) - 1)", "((1u << BITS) / 2 - 1)"),
    "fewer bits of those held": ("((1u << bits) - 1)", "((1u << bits) / 2 - 1)"),
    "those that are not alike": ("key >> edge.shift == edge.prefix", "true"),
    "places that others have not read": (
        "const Sum of = sum(counts, 0);",
        "const Sum of = {0, 0};",
    ),
    "other numbers' bits": ("key[i] >> (SHIFT + BITS) % 32 == prefix", "true"),
    "zeros that differ": (" + 0.0f)", ")"),
    "bins of the round before": (
        "i < BINS; i += THREADS) bins",
        "i < BINS && SHIFT == 20; i += THREADS) bins",
    ),
    "numbers before the window": ("from + i >= begin &&", ""),
}


@nvrtc
@pytest.mark.parametrize(("old", "new"), WRONG.values(), ids=WRONG)
def test_wrong_kernels(old, new):
    """None gives what it should, or it is stopped."""

    assert old in source(Largest(x=F32))
    u = np.random.default_rng(3).random((2, 4999))
    u[:, :3000] = 1 + u[:, :3000] / 8  # alike in the bits of a round
    u[:, 4700:] = 2 + 2 * u[:, 4700:] ** 4
    u[:, -90:] = 0.5
    u[1] = np.where(u[1] > 0.5, -0.0, 0.0)
    u[0, :40] = 2.5
    near = np.random.default_rng(1).integers(40, size=(1, 4999)) / 4  # 9 and above are held
    near += np.random.default_rng(2).integers(9, size=near.shape) * 2.0**-14
    x = np.concatenate([u, np.round(u * 3), near])[:, np.random.default_rng(0).permutation(4999)]
    x = x.astype(np.float32).astype(np.float64)
    first = [1, 2, 3, 0, 1]

    def edit(text):
        return text.replace(old, new)

    try:
        found = emulate(x, 300, first=first, edit=edit, grid=1)
    except (Race, UninitializedRead, IllegalAccess, AssertionError):  # or numbers behind the result
        return
    assert not np.array_equal(found, reference(x, 300, first=first))


@nvrtc
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nothing_spills(dtype):
    kernel = Largest(x=dtype)
    built = compile_cubin(source(kernel), kernel.name)
    assert built.spill_bytes == 0
    assert built.registers * kernel.threads * kernel.ctas_per_sm <= 1 << 16


def test_what_there_is_none_of():
    with pytest.raises(IRError, match="e4m3"):
        Largest(x=E4M3)


def test_text():
    for dtype in FLOATS:
        kernel = Largest(x=dtype)
        text = source(kernel)
        assert text == source(Largest(x=dtype)) and kernel.name in text and "#include" in text
    assert len({Largest(x=x).name for x in (F32, BF16, F16)}) == 3
