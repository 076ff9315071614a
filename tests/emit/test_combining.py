"""Generated combinations: the PTX that NVRTC makes of them, emulated, against NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from cast_reference import codes_of, special
from combine_reference import BITS, emulate, reference, same

from gemmgen.combining import MOST_AT_ONCE, Combination, at_once, source
from gemmgen.emulator import IllegalAccess
from gemmgen.errors import IRError
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32, FLOATS, S8
from gemmgen.runtime.nvrtc import compile_cubin

nvrtc = pytest.mark.nvrtc


@pytest.fixture(autouse=True)
def compiler(request):
    if request.node.get_closest_marker("nvrtc"):
        pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)


def combination(y=BF16, weights=F32, **options):
    return Combination(y=y, weights=weights, **options)


def drawn(c, tokens, top, columns, missing=0.2, add=False, seed=0):
    """y, slots, weights and what is added: values of every kind, copies in rows of their own, some without one."""
    rng = np.random.default_rng(seed)
    rows = tokens * top + 5
    slots = rng.permutation(rows)[: tokens * top].reshape(tokens, top).astype(np.int32)
    absent = rng.random(slots.shape) < missing
    slots[absent] = rng.choice([-1, -(2**31), rows, 2**31 - 1], absent.sum())
    weights = codes_of(rng.standard_normal((tokens, top)), c.weights).view(BITS[c.weights])
    y = special(rows, columns, c.y, seed).view(BITS[c.y])
    y[np.setdiff1d(np.arange(rows), slots)] = np.iinfo(y.dtype).max  # NaN
    beside = special(tokens, columns, c.y, seed + 1).view(BITS[c.y]) if add else None
    return y, slots, weights, beside


def agree(given, c, **options):
    assert same(emulate(*given, c, **options), reference(*given, c), c.y)


@nvrtc
@pytest.mark.parametrize("add", (False, True))
@pytest.mark.parametrize("aligned", (True, False))
@pytest.mark.parametrize("weights", FLOATS, ids=str)
@pytest.mark.parametrize("y", FLOATS, ids=str)
def test_combinations(y, weights, aligned, add):
    """More parts than threads, in rows that end inside of a CTA."""
    c = combination(y, weights, aligned=aligned, at_once=3)
    agree(drawn(c, 13, 3, 264 if aligned else 61, add=add), c)


@nvrtc
@pytest.mark.parametrize("top", range(1, 10))
def test_numbers_of_copies(top):
    for c in (combination(at_once=at_once(top)), combination(F16, BF16, at_once=at_once(top))):
        agree(drawn(c, 7, top, 72, add=top % 2 == 0), c)


@nvrtc
@pytest.mark.parametrize("top", (0, 1, 4, 5, 17))
def test_goes_that_are_not_full(top):
    """Of any number of copies at once: the last go has fewer, or there is none."""
    c = combination(at_once=4)
    agree(drawn(c, 5, top, 40), c)
    agree(drawn(c, 5, top, 40, add=True), c)


@nvrtc
@pytest.mark.parametrize("columns", (1, 3, 7, 8, 127, 136, 1032))
@pytest.mark.parametrize("tokens", (1, 2, 33))
def test_shapes(tokens, columns):
    c = combination(aligned=columns % 8 == 0, at_once=2)
    agree(drawn(c, tokens, 2, columns, add=True), c)


@nvrtc
@pytest.mark.parametrize("aligned", (True, False))
def test_rows_far_apart(aligned):
    """Part of the columns of wider matrices: nothing beside them is read, for it is NaN, or the slot of a row."""
    c = combination(aligned=aligned, at_once=3)
    given = drawn(c, 9, 3, 136, add=True)
    agree(given, c, beside=8 if aligned else 5, offset=8 if aligned else 3)


@nvrtc
@pytest.mark.parametrize("add", (False, True))
def test_tokens_without_a_copy(add):
    """Zeros, or what was added, to the bit: also a zero's sign."""
    c = combination(at_once=2)
    y, slots, weights, beside = drawn(c, 6, 2, 64, missing=0, add=add)
    slots[:] = -1
    weights[:] = 0x7FC00000
    y[:] = 0x7FFF
    found = emulate(y, slots, weights, beside, c)
    assert same(found, np.zeros_like(found) if beside is None else beside, BF16)


@nvrtc
def test_one_row_for_several_copies():
    c = combination(at_once=4)
    y, _, weights, _ = drawn(c, 5, 4, 32)
    y[:3] = special(3, 32, BF16)
    slots = np.array([[0, 0, 1, 1], [2, 2, 2, 2], [0, 1, 2, 0], [-1, 1, 1, -1], [1, 0, 0, 1]])
    agree((y, slots.astype(np.int32), weights, None), c)


@nvrtc
@pytest.mark.parametrize("y", FLOATS, ids=str)
def test_signs_of_zeros(y):
    """The sum begins with +0, so that nothing added up is -0; with what is added, where that is -0."""
    c = combination(y, at_once=2)
    zero = np.zeros((4, 16), BITS[y])
    minus = zero | BITS[y](1 << y.bits - 1)
    slots = np.array([[0, -1], [1, 3], [0, 1], [-1, -1]], np.int32)
    weights = np.array([[-1, 1], [-1, -1], [1, -1], [1, 1]], np.float32).view(np.uint32)
    for add in (None, zero, minus):
        found = emulate(zero, slots, weights, add, c)
        assert np.array_equal(found, reference(zero, slots, weights, add, c))
        assert (found[0] != 0).all() == (add is minus)


@nvrtc
def test_products_are_rounded_before_they_are_added():
    """Sums that a fused product would change, all of them."""
    c = combination(F32, at_once=2)
    e = np.float32(1 + 2**-12)
    y = np.full((2, 8), e, np.float32)
    weights = np.array([[-1, 1], [1, -1]], np.float32) * e
    slots = np.array([[0, 1], [1, 0]], np.int32)
    found = emulate(y.view(np.uint32), slots, weights.view(np.uint32), None, c)
    assert (found == 0).all()


BREAKS = (
    ("__fadd_rn(sum[j], __fmul_rn(weight[i], x[j]))", "__fmaf_rn(weight[i], x[j], sum[j])"),
    ("i < AT_ONCE; ++i) {\n                if (slot[i] >= rows) continue;", "i < AT_ONCE; ++i) {"),
    ("float sum[VECTOR] = {};", "float sum[VECTOR]; for (float& x : sum) x = -0.0f;"),
    ("if (add) load(", "if (false) load("),
    ("first += AT_ONCE", "first += AT_ONCE + 1"),
    ("slot_of + first + i", "slot_of + i"),
    ("weight_of + first + i", "weight_of + i"),
    ("item += gridDim.x * THREADS", "item += 2 * gridDim.x * THREADS"),
    ("row_of(out, token, columns)", "row_of(out, token, y_stride)"),
    ("row_of(slots, token, slots_stride)", "row_of(slots, token, top)"),
    ("row_of(weights, token, weights_stride)", "row_of(weights, token, top)"),
    ("row_of(add, token, add_stride)", "row_of(add, token, columns)"),
    ("row_of(y, slot[i], y_stride)", "row_of(y, slot[i], columns)"),
    ("items = tokens * parts", "items = tokens * parts - 1"),
    ("slot[i] >= rows", "slot[i] > rows"),
    ("named = first + i < top", "named = first + i <= top"),
    ("ptx::code_bf16(value)", "__float_as_uint(value) >> 16"),
    ("% 32;", "% 16;"),
)


def seen(c, old, new, add):
    """Whether results of a text with one thing changed differ, or the emulator refuses an access."""
    given = drawn(c, 60, 5, 72, add=add)
    used = np.unique(given[1][(given[1] >= 0) & (given[1] < len(given[0]))])
    plain = codes_of(np.random.default_rng(1).standard_normal((len(used), 72)), c.y)
    given[0][used] = plain.view(BITS[c.y])
    given[1][7] = -1
    try:
        found = emulate(*given, c, beside=8, text=source(c).replace(old, new))
    except (AssertionError, IllegalAccess):
        return True
    return not same(found, reference(*given, c), c.y)


@nvrtc
@pytest.mark.parametrize(("old", "new"), BREAKS, ids=lambda x: x[:32])
def test_what_is_broken_is_seen(old, new):
    made = [combination(y, at_once=2) for y in (BF16, F32)]
    assert any(old in source(c) for c in made)
    assert any(seen(c, old, new, add) for c in made for add in (True, False))


@nvrtc
def test_what_is_whole_is_not():
    assert not any(seen(combination(y, at_once=2), "", "", True) for y in (BF16, F32))


def every():
    for y in FLOATS:
        for weights in FLOATS:
            for aligned in (True, False):
                for n in range(1, MOST_AT_ONCE + 1):
                    yield combination(y, weights, aligned=aligned, at_once=n)


@nvrtc
@pytest.mark.parametrize("c", [*every()], ids=lambda c: c.name)
def test_they_compile_without_spills(c):
    """`compile_cubin` refuses a kernel that spills; local memory would be read back too."""
    cubin = compile_cubin(source(c), c.name)
    assert cubin.stack_bytes == 0 and cubin.registers * c.threads * c.ctas_per_sm <= 65536


def test_names_are_distinct():
    made = [*every()]
    assert len({c.name for c in made}) == len(made)


def test_the_same_combination_is_the_same_text():
    assert source(combination()) == source(combination()) and "#include" in source(combination())


@pytest.mark.parametrize(
    ("top", "many"), ((0, 1), (1, 1), (2, 2), (6, 6), (8, 8), (9, 5), (16, 8), (17, 6), (20, 7))
)
def test_copies_at_once(top, many):
    assert at_once(top) == many


@pytest.mark.parametrize(
    ("y", "aligned", "tokens", "columns", "tiles"),
    (
        (BF16, True, 1, 8, 1),
        (BF16, True, 16, 72, 2),
        (F32, True, 16, 72, 3),
        (F16, False, 3, 43, 2),
    ),
)
def test_tiles(y, aligned, tokens, columns, tiles):
    assert combination(y, aligned=aligned).tiles(tokens, columns) == tiles


@pytest.mark.parametrize(
    "wrong", ({"y": E4M3}, {"weights": S8}, {"at_once": 0}, {"at_once": 9}, {"at_once": 2.5})
)
def test_refusals(wrong):
    with pytest.raises(IRError):
        Combination(**{"y": BF16, "weights": F32, **wrong})
