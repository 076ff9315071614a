"""Generated casts: the PTX that NVRTC makes of them, emulated, against NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from cast_reference import codes_of, emulate, reference, special

from gemmgen.casts import ROW_THREADS, Cast, row_threads, source
from gemmgen.emulator import Race
from gemmgen.errors import IRError
from gemmgen.ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8
from gemmgen.runtime.nvrtc import compile_cubin

INPUTS, OUTPUTS, PERS = (BF16, F16, F32), (E4M3, S8), ("columns", "row", "block")
nvrtc = pytest.mark.nvrtc


@pytest.fixture(autouse=True)
def compiler(request):
    if request.node.get_closest_marker("nvrtc"):
        pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


def cast(x=BF16, q=E4M3, per="columns", row_threads=64, **options):
    return Cast(x=x, q=q, per=per, row_threads=row_threads if per == "row" else None, **options)


def agree(x, c, groups=1, **options):
    for got, want in zip(emulate(x, c, groups, **options), reference(x, c, groups), strict=True):
        assert got.dtype == want.dtype and np.array_equal(got, want)


@nvrtc
@pytest.mark.parametrize("power_of_two", (False, True))
@pytest.mark.parametrize("per", PERS)
@pytest.mark.parametrize("q", OUTPUTS, ids=str)
@pytest.mark.parametrize("x", INPUTS, ids=str)
def test_casts(x, q, per, power_of_two):
    """Two groups of rows that fill no tile, columns that fill no block, values of every kind."""
    agree(special(2 * 37, 200, x), cast(x, q, per, power_of_two=power_of_two), groups=2)


@nvrtc
@pytest.mark.parametrize("per", PERS)
@pytest.mark.parametrize("x", INPUTS, ids=str)
@pytest.mark.parametrize(("columns", "offset"), ((1, 0), (133, 1), (257, 0)))
def test_rows_that_begin_anywhere(x, per, columns, offset):
    c = cast(x, S8 if columns == 1 else E4M3, per, aligned=False)
    agree(special(11, columns, x), c, pitch=columns + 2, offset=offset)


@nvrtc
@pytest.mark.parametrize("per", PERS)
def test_rows_far_apart(per):
    """Part of the columns of a wider matrix: nothing beside them is read or written."""
    agree(special(150, 136, BF16), cast(per=per), pitch=160, offset=8)


@nvrtc
@pytest.mark.parametrize(("rows", "columns"), ((1, 8), (1, 384), (9, 128), (260, 264)))
@pytest.mark.parametrize("per", PERS)
def test_shapes(rows, columns, per):
    agree(special(rows, columns, BF16, seed=rows), cast(per=per))


@nvrtc
@pytest.mark.parametrize("columns", (1024, 1032, 2048, 2500, 4096))
def test_rows_that_are_read_twice(columns):
    """32 threads hold 1024 columns."""
    agree(special(3, columns, BF16), cast(per="row", row_threads=32, aligned=columns % 8 == 0))


@nvrtc
@pytest.mark.parametrize("threads", ROW_THREADS)
def test_rows_of_any_number_of_threads(threads):
    agree(special(7, 776, F32), cast(F32, per="row", row_threads=threads), grid=2)


@nvrtc
@pytest.mark.parametrize("q", OUTPUTS, ids=str)
@pytest.mark.parametrize("per", PERS)
def test_ties(q, per):
    """A greatest value that makes the factor 1, and halves between codes: to the even one."""
    limit, step = {E4M3: (448.0, 2.0**-10), S8: (127.0, 0.5)}[q]
    values = np.concatenate(
        [np.arange(-120, 120) * step, np.arange(-120, 120) * 0.25, [limit] * 32]
    )
    x = codes_of(np.resize(values, (4, 512)), F32)
    agree(x, cast(F32, q, per))


@nvrtc
@pytest.mark.parametrize("per", ("row", "block"))
def test_one_place_for_the_maxima_would_race(per, monkeypatch):
    """The barrier between one row's maxima and the next's is saved because they alternate."""
    from gemmgen import casts

    monkeypatch.setattr(casts, "source", lambda c: source(c).replace("turn ^= 1", "turn ^= 0"))
    import cast_reference

    monkeypatch.setattr(cast_reference, "source", casts.source)
    with pytest.raises(Race):
        emulate(special(600, 128, BF16), cast(per=per), grid=1)


def every():
    """Casts of every spelling, the rows as wide as they get."""
    for x in INPUTS:
        for per in PERS:
            for aligned in (True, False):
                for q, power_of_two in ((E4M3, False), (S8, True)):
                    widest = row_threads(x, 1 << 30, aligned)
                    options = {"power_of_two": power_of_two, "aligned": aligned}
                    yield cast(x, q, per, widest, **options)


@nvrtc
@pytest.mark.parametrize("c", [*every()], ids=lambda c: c.name)
def test_they_compile_without_spills(c):
    """`compile_cubin` refuses a kernel that spills; local memory would be read back too."""
    cubin = compile_cubin(source(c), c.name)
    assert cubin.stack_bytes == 0 and cubin.registers * c.threads * c.ctas_per_sm <= 65536


def test_names_are_distinct():
    made = [*every(), *(cast(per="row", row_threads=n) for n in ROW_THREADS[:-1])]
    assert len({c.name for c in made}) == len(made)


def test_the_same_cast_is_the_same_text():
    assert source(cast()) == source(cast()) and "#include" in source(cast())


@pytest.mark.parametrize(
    ("x", "columns", "aligned", "threads"),
    (
        (BF16, 1, True, 32),
        (BF16, 1024, True, 32),
        (BF16, 1025, True, 64),
        (BF16, 16384, True, 512),
        (F32, 1024, True, 64),
        (F32, 1 << 20, True, 512),
        (BF16, 1 << 20, False, 256),
    ),
)
def test_threads_of_a_row(x, columns, aligned, threads):
    assert row_threads(x, columns, aligned) == threads


@pytest.mark.parametrize(
    ("per", "rows", "columns", "group_rows", "tiles"),
    (
        ("columns", 8, 1024, 8, 1),  # eight warps, one block each
        ("columns", 9, 1024, 9, 2),
        ("row", 77, 5, 77, 77),
        ("block", 258, 129, 129, 8),
    ),
)
def test_tiles(per, rows, columns, group_rows, tiles):
    assert cast(per=per).tiles(rows, columns, group_rows) == tiles


@pytest.mark.parametrize(
    "wrong",
    (
        {"x": E4M3},
        {"q": E5M2},
        {"per": "column"},
        {"per": "row", "row_threads": None},
        {"per": "row", "row_threads": 48},
        {"per": "row", "row_threads": 512, "aligned": False},
        {"row_threads": 32},
    ),
)
def test_refusals(wrong):
    with pytest.raises(IRError):
        Cast(**{"x": BF16, "q": E4M3, "per": "columns", **wrong})
