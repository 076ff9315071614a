"""Configs by which bits do not depend on the batch: what describes a sum, what is chosen, and the bits themselves."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest
from fake_torch import Placed, fake_torch_fixture, launches_fixture  # noqa: F401
from invariance.campaign import PROBLEMS, choices, described_alike, same_bits
from kernels import DENSE, DENSE_F32, FP8, INT8_BLOCK, VECTOR

from gemmgen import levers, ops
from gemmgen.config import Config
from gemmgen.cost import cost
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError
from gemmgen.heuristics import ANY, candidates, choose, tuned
from gemmgen.heuristics.invariant import split_of
from gemmgen.ir.dtypes import E4M3, S8
from gemmgen.levers import LEVERS, Lever
from gemmgen.levers.lever import choice
from gemmgen.ops import building, invariance
from gemmgen.problem import Problem
from gemmgen.summation import EXACT, summation
from gemmgen.target import H200

FP8_SUMS = Problem(family="fp8", a=E4M3, b=E4M3)
INT8 = Problem(family="dense", a=S8, b=S8)


# ---- descriptions ---------------------------------------------------------------------------


def test_what_a_sum_is():
    found = summation(FP8, Config(split_k=4), 1100)  # nine blocks: shares of three, and none
    assert (found.chain, found.promoted) == (32, 128)
    assert found.shares == ((0, 384), (384, 768), (768, 1100), (1100, 1100))
    dense = summation(DENSE, Config(), 1000)
    assert (dense.chain, dense.promoted, dense.shares) == (16, 0, ((0, 1000),))
    assert summation(INT8, Config(split_k=8), 999) == EXACT != summation(INT8_BLOCK, Config(), 999)


def test_what_changes_it_and_what_does_not():
    """K blocks are promoted one by one; in the tensor core they are one chain, unless shares begin with them."""
    small = Config(block_k_bytes=64)
    assert summation(FP8_SUMS, small, 640) != summation(FP8_SUMS, Config(), 640)
    assert summation(DENSE, small, 640) == summation(DENSE, Config(), 640)
    halves = [summation(DENSE, replace(c, split_k=2), 320) for c in (small, Config())]
    assert halves[0] != halves[1]
    other = Config(
        block_m=64, block_n=48, stages=3, consumers=1, unroll=2, in_flight=1, swap_ab=True, pdl=True,
        raster="n", panel=3,
    )  # fmt: skip
    assert summation(DENSE, other, 640) == summation(DENSE, Config(), 640)


@pytest.mark.parametrize("p", PROBLEMS, ids=lambda p: f"{p.family}-{p.a}")
def test_what_is_chosen_for_so_many_shares_adds_up_so(p):
    for split in (1, 2, 4):
        for k in (96, 7168):
            c = choose(p, (8, 576, k), H200, split_k=split)
            assert tuned.adds_up(p, c, k, split)
            assert not tuned.adds_up(p, c, 7168, 8 // split)


def test_shares_of_one_cta_are_those_of_a_cluster():
    for k in (320, 640, 7168):
        for n in (2, 4, 8):
            c = Config(shares=n, swap_ab=True, block_m=32)
            assert summation(DENSE, c, k) == summation(DENSE, Config(split_k=n), k)
            assert summation(FP8, c, k) == summation(FP8, Config(split_k=n), k)
    assert summation(DENSE, Config(shares=2), 640) != summation(DENSE, Config(), 640)


def test_streams_add_up_as_nothing_else_does():
    """Where stretches of K blocks end follows from M, N and the grid, which a config and K do not tell. Integers do not mind."""
    streamed = Config(stream=True)
    found = summation(DENSE, streamed, 640)
    assert found.others == (("stream", True),)
    for other in (Config(), Config(split_k=2), streamed, replace(streamed, block_m=64)):
        assert summation(DENSE, other, 640) != found
    assert not any(tuned.adds_up(FP8, streamed, 640, split) for split in (1, 2, 4, 8))
    assert summation(INT8, streamed, 640) == EXACT


def test_a_lever_that_does_not_say_so_may_change_it(monkeypatch):
    """So a new one is never taken for harmless."""
    monkeypatch.setattr(levers, "LEVERS", [*LEVERS])
    assert [x.name for x in LEVERS if x.sums] == [
        "block_k_bytes",
        "split_k",
        "stream",
        "direct",
        "shares",
        "slice_k",
    ]
    added = Lever(name="twist", values=choice(0, 1), default=0, added=True, tag="t{}")
    monkeypatch.setitem(levers.MORE, "twist", added)
    monkeypatch.setitem(levers.FIELDS, "twist", added.values)
    LEVERS.append(added)
    try:
        turned = summation(DENSE, Config(more={"twist": 1}), 640)
        assert turned.others == (("twist", 1),)
        assert summation(DENSE, Config(more={"twist": 0}), 640) == summation(DENSE, Config(), 640)
    finally:
        LEVERS.remove(added)


# ---- choices --------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [FP8, DENSE, VECTOR])
def test_the_split_is_of_n_k_and_dtypes(p):
    """Not of what else a problem has. Few columns and a long K are divided, many columns are not."""
    few = split_of(p, 576, 7168)
    assert few > 1 == split_of(p, 24576, 1536)
    others = [
        replace(p, grouping="masked"),
        replace(p, epilogue=EPILOGUES["bias_silu"]),
        replace(p, grouping="rows", alignment=64),
    ]
    assert {split_of(x, 576, 7168) for x in others} == {few}
    assert split_of(replace(p, grouping="k_columns"), 576, 7168) == 1, "groups that split K"


def test_integers_add_up_in_any_order():
    assert split_of(INT8, 576, 7168) == ANY < split_of(INT8_BLOCK, 576, 7168)


@pytest.mark.parametrize("p", PROBLEMS, ids=lambda p: f"{p.family}-{p.a}")
def test_every_choice_adds_up_alike(p):
    """For any M, grouping, device and database."""
    found = [*choices([p], ((576, 7168), (264, 1000)), (1, 16, 33, 128, 4096))]
    assert len(found) > 50 and all(described_alike(*x) for x in found)


def test_a_measured_config_serves_where_it_adds_up_so():
    shape = (16, 2112, 7168)  # measured with two CTAs; at M = 4096 with one
    split = split_of(FP8, *shape[1:])
    assert tuned.pick(FP8, shape, split_k=split).row and split == 2
    large = tuned.pick(FP8, (4096, *shape[1:]), split_k=split)
    assert large.row is None and (large.config.split_k, large.config.shares) == (1, 2)
    assert tuned.pick(FP8, (4096, *shape[1:])).row


@pytest.mark.parametrize("p", [FP8, DENSE])
def test_clusters_or_shares_whichever_costs_less(p):
    """A cluster for few rows, one CTA for many; no shares where K is whole or the choice is free. By groups, too."""
    for q in (p, replace(p, grouping="rows"), replace(p, grouping="batched")):
        count = 1 if q is p else 4
        few, many = (choose(q, (m, 576, 7168), H200, count, split_k=4) for m in (16, 4096))
        assert (many.split_k, many.shares) == (1, 4) and {few.split_k, few.shares} == {1, 4}
    assert choose(p, (16, 576, 7168), H200, split_k=4).split_k == 4
    for split in (1, ANY):
        assert choose(p, (4096, 576, 7168), H200, split_k=split).shares == 1


@pytest.mark.parametrize("p", [FP8, DENSE])
def test_many_rows_cost_less_than_clusters_would(p):
    """As the model says, of any tile, legal or not."""
    shape = (4096, 576, 7168)
    tried = [c for c in candidates(p, shape, H200, rows=4096, split_k=4) if c.split_k == 4]
    least = min(cost(p, c, shape, H200).seconds for c in tried)
    assert 1.3 * cost(p, choose(p, shape, H200, split_k=4), shape, H200).seconds < least


def test_the_free_choice_is_as_it_was():
    assert choose(FP8, (16, 576, 7168), H200).split_k == 8
    assert choose(FP8, (16, 576, 7168), H200, split_k=1).split_k == 1


# ---- bits -----------------------------------------------------------------------------------


@cache
def sampled(number):
    """One of the kernels that are chosen for the problem of that number."""
    p, sides = PROBLEMS[number % len(PROBLEMS)], ((576, 7168), (264, 1000))
    found = {(p, c): None for p, _, c, _ in choices([p], sides, (1, 40, 100, 257, 4096))}
    return Random(number).choice([*found])


@pytest.mark.nvrtc
@pytest.mark.parametrize("number", range(24))
def test_bits_are_those_of_the_plainest_kernel(number):
    """Of every row, wherever it lies. `python -m tests.invariance` does it of all."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    assert same_bits(*sampled(number))


@pytest.mark.nvrtc
@pytest.mark.parametrize(("p", "one", "other"), [
    (DENSE, {}, {"split_k": 2}),
    (FP8, {"split_k": 2}, {"split_k": 4}),
    (FP8_SUMS, {}, {"block_k_bytes": 64}),
], ids=["dense", "fp8_block", "fp8"])  # fmt: skip
def test_other_sums_have_other_bits(p, one, other):
    """So that equal bits say something."""
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from invariance.bits import bits, plain

    base = plain(p, 1)
    p = replace(p, d=DENSE_F32.d)
    found = [bits(p, replace(base, **x), 8, 72, 640) for x in (one, other)]
    assert (found[0] != found[1]).mean() > 0.05


# ---- what users say -------------------------------------------------------------------------


@pytest.fixture
def asked(launches, monkeypatch):
    """Configs that are launched, of a GPU that is none."""
    monkeypatch.setattr(building.driver, "require_hopper", lambda device: H200.device_name)
    monkeypatch.setattr(invariance, "asked", False)
    building.kept_choice.cache_clear()
    return launches


def multiply(m=16, n=576, k=7168, **more):
    return ops.gemm(Placed(m, k, dtype="bfloat16"), Placed(n, k, dtype="bfloat16"), **more)


def splits(launches):
    """Into how many shares each divides K, by CTAs or one after the other."""
    return [max(x.config.split_k, x.config.shares) for x in launches]


def test_an_argument_of_every_call(asked):
    want = split_of(DENSE, 576, 7168)
    for m in (16, 2048):
        multiply(m, invariant=True)
    multiply(4096)
    multiply(4096, invariant=False)
    assert splits(asked) == [want, want, 1, 1] and want > 1


def test_the_process_may_be_told(asked):
    want = split_of(DENSE, 576, 7168)
    ops.set_invariant(True)
    assert ops.is_invariant()
    multiply(4096)
    multiply(4096, invariant=False)
    a, b, out = (Placed(*s, dtype="bfloat16") for s in ((4096, 7168), (576, 7168), (4096, 576)))
    for on in (True, False, True):
        ops.set_invariant(on)
        ops.gemm(a, b, out)  # the same call again: it is not kept from another setting
    assert splits(asked) == [want, 1, want, 1, want]
    assert ops.chosen(DENSE, (4096, 576, 7168)).shares == want
    free = ops.chosen(DENSE, (4096, 576, 7168), split_k=ANY)
    assert (free.split_k, free.shares) == (1, 1)


def test_the_environment_may_say_so(asked, monkeypatch):
    for text, on in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv(invariance.VARIABLE, text)
        monkeypatch.setattr(invariance, "asked", invariance.from_environment())
        assert ops.is_invariant() is on
    monkeypatch.setattr(invariance, "asked", "yes")
    with pytest.raises(ArgumentError, match="GEMMGEN_INVARIANT='yes': must be 0 or 1"):
        multiply()
    multiply(invariant=True)


def test_for_a_while(asked):
    with invariance.asking(True):
        assert ops.is_invariant()
        with invariance.asking(None):
            assert ops.is_invariant()
    assert not ops.is_invariant()


def test_a_config_that_is_given_must_add_up_so(asked):
    split = split_of(DENSE, 576, 7168)
    right = Config(block_m=64, block_n=64, consumers=1, split_k=split, in_flight=1)
    multiply(config=right, invariant=True)
    with pytest.raises(ArgumentError, match=f"must add up as split_k={split}"):
        multiply(config=replace(right, split_k=1), invariant=True)
    with pytest.raises(ArgumentError, match="config='split_k=1, stream=True': must add up as"):
        multiply(config=replace(right, split_k=1, stream=True), invariant=True)
    multiply(config=replace(right, split_k=1, shares=split), invariant=True)
    multiply(config=replace(right, split_k=1))
    assert splits(asked) == [split, split, 1]


@pytest.mark.parametrize("wrong", [1, "yes"])
def test_other_words_are_refused(asked, wrong):
    with pytest.raises(ArgumentError, match="must be True or False"):
        multiply(invariant=wrong)
    with pytest.raises(ArgumentError, match="on="):
        ops.set_invariant(wrong)
