"""The family of FP8 activations and MXFP4 weights: what it takes, what is chosen for it, and its registers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels import DECODED_FP8, W4A8

from gemmgen import heuristics
from gemmgen.config import Config
from gemmgen.cost import cost
from gemmgen.errors import ArgumentError, IllegalConfig
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import BF16, E4M3, E5M2
from gemmgen.ir.packed import FORMS, plain_weights
from gemmgen.ir.rewrite import statements
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.target import H200

SHAPES = tuple((m, 8192, 8192) for m in (1, 16, 64, 128, 512, 4096))


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"weights": ""}, "weights='': must be one of e2m1_32_e8m0"),
        ({"weights": "int4_128_bf16"}, "weights='int4_128_bf16': must be one of e2m1_32_e8m0"),
        ({"weights": "int4_128_f32"}, "weights='int4_128_f32': must be one of e2m1_32_e8m0$"),
        ({"layout": "tn"}, "layout='tn': must be nt for e4m3"),
        ({"grouping": "k_columns"}, "grouping='k_columns': must be none that splits K"),
        ({"a": E5M2}, "a='e5m2': w4a8 multiplies e4m3 x e4m3"),
        ({"b": BF16}, "b='bf16': w4a8 multiplies e4m3 x e4m3"),
        ({"family": "w4a16"}, "a='e4m3': w4a16 multiplies bf16 x bf16 or f16 x f16"),
    ),
)
def test_what_no_config_could_compute_is_refused(changes, message):
    with pytest.raises(ArgumentError, match="^" + message):
        replace(W4A8, **changes)


def test_json_says_the_weights():
    assert (
        W4A8.to_json()["weights"] == plain_weights(E4M3) and next(iter(FORMS[E4M3])) == W4A8.weights
    )
    assert Problem.from_json(W4A8.to_json()) == W4A8


@pytest.mark.parametrize("grouping", ("none", "batched", "masked", "rows", "ends"))
def test_a_config_is_chosen_for_any_number_of_rows(grouping):
    p = replace(W4A8, grouping=grouping)
    for shape in SHAPES:
        c = heuristics.choose(p, shape, H200, 1 if grouping == "none" else 8)
        assert c.swap_ab and c.block_k_bytes == 128
        assert lower(p, c).smem_bytes <= H200.smem_bytes


def test_a_k_block_has_128_columns():
    with pytest.raises(IllegalConfig, match="Use block_k_bytes=128 and multicast=none or a"):
        lower(W4A8, replace(DECODED_FP8, block_k_bytes=256))
    with pytest.raises(IllegalConfig, match="Use swap_ab=true"):
        lower(W4A8, Config())


def test_weights_are_half_of_what_is_read():
    dense = cost(Problem(family="dense", a=E4M3, b=E4M3), Config(), SHAPES[0], H200).dram_bytes
    found = cost(W4A8, replace(DECODED_FP8, stages=8), SHAPES[0], H200).dram_bytes
    assert found / dense == pytest.approx((4 + 8 / 32) / 8, rel=1e-2)


def test_a_half_of_a_k_block_is_two_steps_of_four_registers():
    """Of 16-bit numbers it is twice as many."""
    kernel = lower(W4A8, DECODED_FP8)
    counts = {r.name: r.count for role in kernel.roles for r in role.locals}
    assert (counts["first_half"], counts["second_half"], counts["codes"]) == (8, 8, 8)
    assert counts["records"] == 2  # four exponents of each row
    products = [s for s in statements(kernel) if isinstance(s, ir.MmaDecoded)]
    assert [[b for _, b in s.steps] for s in products] == [[0, 32], [64, 96]]


@pytest.mark.parametrize(("m", "changes"), [(64, {"slice_k": True}), (128, {"split_k": 2})])
def test_more_rows_are_divided_by_two_warpgroups_or_two_ctas(m, changes):
    """As measured: the quickest where tiles of 64 columns are as many as SMs, and where they are half as many. With 128 rows two CTAs take 1.03
    of two warpgroups."""
    divided = heuristics.choose(W4A8, (m, 8192, 8192), H200)
    assert divided == divided.having(block_m=m, consumers=2, **changes)
    split = heuristics.choose(W4A8, (m, 4096, 14336), H200)
    assert (split.block_m, split.block_n, split.consumers) == (m, 64, 1)
    assert split.split_k == 2 and not split.slice_k
