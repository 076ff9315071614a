"""Operands whose B is packed weights: what lies in the blocks are the numbers that a reference multiplies."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen.codes import decode
from gemmgen.formats import (
    Packed,
    dequantise,
    elements,
    multiplied,
    named,
    nibbles,
    sum_scales,
    unpack,
)
from gemmgen.ir.dtypes import E4M3
from gemmgen.ir.packed import FORMS, OF_8_BITS
from gemmgen.problem import Problem
from gemmgen.verification import exact_integers, ladder, random_normal

CASES = [(to, name) for to in FORMS for name in FORMS[to]]
SUMMED = [name for name, form in FORMS[E4M3].items() if form.scales_sums]
OCTETS = [(to, name) for to in OF_8_BITS for name in OF_8_BITS[to]]
SHAPE = (3, 70, 200)  # of the last blocks some rows and columns are past B's


def drawn(draw, to, name, grouping="none"):
    of_fp8 = "w4a8_block" if name in SUMMED else "w4a8"
    family = "w8a16" if (to, name) in OCTETS else of_fp8 if to == E4M3 else "w4a16"
    p = Problem(family=family, a=to, b=to, weights=name, grouping=grouping)
    return p, draw(p, *SHAPE, seed=3)


def weights_of(p, x, group=...):
    """What is in the blocks, all of it; of E4M3 over its row's factor."""
    form = p.form
    blocks = x.blocks[group]
    rows, columns = 64 * blocks.shape[-3], 128 * blocks.shape[-2]
    held = Packed(format=named(form.format), to=form.to, blocks=blocks, rows=rows, columns=columns)
    return unpack(held)


@pytest.mark.parametrize("draw", (exact_integers, ladder, random_normal))
@pytest.mark.parametrize(("to", "name"), CASES, ids=lambda x: str(x))
def test_b_is_what_the_blocks_stand_for(draw, to, name):
    p, x = drawn(draw, to, name)
    n, k = SHAPE[1:]
    assert x.b.shape == (n, k) and x.blocks.shape == (2, 2, p.form.block_bytes)
    held = multiplied(weights_of(p, x), to)[:n, :k]
    assert np.array_equal(decode(x.b, to), held)


@pytest.mark.parametrize("draw", (exact_integers, ladder))
@pytest.mark.parametrize(("to", "name"), CASES, ids=lambda x: str(x))
def test_exact_operands_are_those_of_a_dense_b_with_scales_that_differ(draw, to, name):
    """The numbers stay the drawn ones, of which sums are exact, times a power of two in each row that has a factor; the codes make up for
    the scales."""
    p, x = drawn(draw, to, name)
    dense = draw(Problem(family="dense", a=to, b=to), *SHAPE, seed=3)
    assert np.array_equal(x.a, dense.a) or (name in SUMMED and draw is ladder)  # of scaled rows
    found, wanted = decode(x.b, to), decode(dense.b, to)
    if name in SUMMED:
        found = found * np.repeat(x.scale_b.astype(float), 128, 1)[:, : SHAPE[2]]
    if p.form.factors:
        factors = np.abs(found).max(1, keepdims=True) / np.abs(wanted).max(1, keepdims=True)
        assert {*np.frexp(factors)[0].flat} == {0.5}
        wanted = wanted * factors
    assert np.array_equal(found, wanted)
    held = weights_of(p, x)
    scales = sum_scales(held, to)
    by = 1.0 if scales is None else np.repeat(scales.astype(float), 128, 1)
    assert np.array_equal(dequantise(held), multiplied(held, to) * by)
    assert len(np.unique(held.scales)) > 1
    assert held.zeros is None or len(np.unique(held.zeros)) > 1


@pytest.mark.parametrize(("to", "name"), CASES, ids=lambda x: str(x))
def test_random_operands_have_every_code(to, name):
    p, x = drawn(random_normal, to, name)
    assert len(np.unique(nibbles(weights_of(p, x).codes))) == 16


@pytest.mark.parametrize("draw", (exact_integers, ladder, random_normal))
@pytest.mark.parametrize(("to", "name"), OCTETS, ids=str)
def test_b_is_what_codes_of_8_bits_are(draw, to, name):
    """Exact ones are those of a dense B, times what numbers lack."""
    p, x = drawn(draw, to, name)
    n, k = SHAPE[1:]
    assert x.b.shape == (n, k) and x.blocks.shape == (2, 2, 8192)
    held = elements(weights_of(p, x))[:n, :k]
    assert np.array_equal(decode(x.b, to) * 2.0**p.form.left, held)
    if draw is random_normal:
        assert len(np.unique(held)) >= 250
        return
    dense = draw(Problem(family="dense", a=to, b=to), *SHAPE, seed=3)
    assert np.array_equal(x.a, dense.a) and np.array_equal(held, decode(dense.b, to))


def test_each_group_has_its_own():
    p, x = drawn(random_normal, *CASES[0], grouping="masked")
    assert len(x.blocks) == len(x.b) > 1
    assert not np.array_equal(x.blocks[0], x.blocks[1])
    held = multiplied(weights_of(p, x, 1), p.b)
    assert np.array_equal(decode(x.b[1], p.b), held[: SHAPE[1], : SHAPE[2]])


def test_other_families_have_no_blocks():
    assert (
        exact_integers(Problem(family="dense", a="bf16", b="bf16"), *SHAPE, seed=0).blocks is None
    )
