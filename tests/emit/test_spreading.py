"""Generated spreads: the PTX that NVRTC makes of them, emulated, against NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from spread_reference import emulate, reference

from gemmgen.emulator import IllegalAccess, Race
from gemmgen.errors import IRError
from gemmgen.runtime.nvrtc import compile_cubin
from gemmgen.spreading import UNITS, Spread, source

nvrtc = pytest.mark.nvrtc


@pytest.fixture(autouse=True)
def compiler(request):
    if request.node.get_closest_marker("nvrtc"):
        pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


def drawn(tokens, top, size, blocks, missing=0.2, seed=0):
    """q, scale, slots and rows: any bytes, copies in rows of their own, some without one."""
    rng = np.random.default_rng(seed)
    rows = tokens * top + 5
    slots = rng.permutation(rows)[: tokens * top].reshape(tokens, top).astype(np.int32)
    absent = rng.random(slots.shape) < missing
    slots[absent] = rng.choice([-1, -(2**31), rows, 2**31 - 1], absent.sum())
    q = rng.integers(0, 256, (tokens, size), np.uint8)
    scale = rng.integers(0, 2**32, (tokens, blocks), np.uint32)
    return q, scale, slots, rows


def same(found, wanted):
    return all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def agree(given, c, **options):
    assert same(emulate(*given, c, **options), reference(*given))


@nvrtc
@pytest.mark.parametrize("by_row", (False, True))
@pytest.mark.parametrize("unit", UNITS)
def test_spreads(unit, by_row):
    """More items than threads; rows that end inside of a CTA, and scales that begin inside of one."""
    agree(drawn(37, 3, 23 * unit, 3), Spread(unit=unit), by_row=by_row)


@nvrtc
@pytest.mark.parametrize("top", (*range(10), 17))
def test_numbers_of_copies(top):
    agree(drawn(7, top, 160, 2, seed=top), Spread())


@nvrtc
@pytest.mark.parametrize("blocks", (0, 1, 9))
@pytest.mark.parametrize("parts", (0, 1, 64, 65))
@pytest.mark.parametrize("tokens", (1, 2, 33))
def test_shapes(tokens, parts, blocks):
    agree(drawn(tokens, 2, 16 * parts, blocks), Spread())


@nvrtc
@pytest.mark.parametrize("unit", UNITS)
def test_rows_far_apart(unit):
    """Part of the columns of wider matrices, from anywhere that the unit allows."""
    agree(drawn(9, 3, 16 * unit, 4), Spread(unit=unit), beside=3, offset=unit)
    agree(drawn(9, 3, 16 * unit, 4), Spread(unit=unit), beside=1, by_row=True)


@nvrtc
def test_nothing_is_written_where_no_copy_is():
    q, scale, slots, rows = drawn(50, 4, 64, 2)
    slots[:] = -1
    agree((q, scale, slots, rows), Spread())
    agree((q, scale, slots, 0), Spread())


BREAKS = (
    ("if (slot[i] < rows) store", "if (slot[i] <= rows) store"),
    ("if (slot[i] < rows) store", "if (int(slot[i]) < int(rows)) store"),
    ("first += AT_ONCE", "first += AT_ONCE + 1"),
    ("__ldg(slots + first + i)", "__ldg(slots + i)"),
    ("first + i < top ?", "first + i <= top ?"),
    ("item += gridDim.x * THREADS", "item += 2 * gridDim.x * THREADS"),
    ("items = of_rows + tokens * blocks", "items = of_rows + tokens * blocks - 1"),
    ("item < of_rows", "item < of_rows - 1"),
    ("(item - of_rows) / tokens", "item / tokens"),
    ("row_of(q, token, q_stride)", "row_of(q, token, parts)"),
    ("row_of(codes, row, parts)", "row_of(codes, row, q_stride)"),
    ("row_of(slots, token, slots_stride)", "row_of(slots, token, top)"),
    ("row_of(scale, token, scale_token)", "row_of(scale, token, 1)"),
    ("row_of(scales, block, scales_stride)", "row_of(scales, block, rows)"),
    ("static_cast<uint64_t>(block) * scale_block", "block"),
)


def seen(old, new, by_row):
    """Whether results of a text with one thing changed differ, or the emulator refuses an access."""
    given, c = drawn(41, 11, 176, 3), Spread()
    try:
        found = emulate(*given, c, beside=1, by_row=by_row, text=source(c).replace(old, new))
    except (AssertionError, IllegalAccess, Race):
        return True
    return not same(found, reference(*given))


@nvrtc
@pytest.mark.parametrize(("old", "new"), BREAKS, ids=lambda x: x[:32])
def test_what_is_broken_is_seen(old, new):
    assert old in source(Spread())
    assert any(seen(old, new, by_row) for by_row in (False, True))


@nvrtc
@pytest.mark.parametrize("by_row", (False, True))
def test_what_is_whole_is_not(by_row):
    assert not seen("", "", by_row)


@nvrtc
@pytest.mark.parametrize("unit", UNITS)
def test_they_compile_without_spills(unit):
    """`compile_cubin` refuses a kernel that spills; local memory would be read back too."""
    c = Spread(unit=unit)
    cubin = compile_cubin(source(c), c.name)
    assert cubin.stack_bytes == 0 and cubin.registers * c.threads * c.ctas_per_sm <= 65536


def test_names_are_distinct():
    assert len({Spread(unit=n).name for n in UNITS}) == len(UNITS)


def test_the_same_spread_is_the_same_text():
    assert source(Spread()) == source(Spread()) and "#include" in source(Spread())


@pytest.mark.parametrize(
    ("tokens", "parts", "blocks", "tiles"),
    ((1, 1, 0, 1), (16, 7, 1, 1), (16, 8, 1, 2), (3, 0, 43, 2)),
)
def test_tiles(tokens, parts, blocks, tiles):
    assert Spread().tiles(tokens, parts, blocks) == tiles


@pytest.mark.parametrize("unit", (0, 3, 32, "16"))
def test_refusals(unit):
    with pytest.raises(IRError):
        Spread(unit=unit)
