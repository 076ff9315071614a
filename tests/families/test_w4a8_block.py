"""The family of FP8 activations with a scale for each 128 of K and MXFP4 weights: what is chosen for it, how its K blocks are promoted, and its proof."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import judged, same_bits
from kernels import DECODED_FP8, FP8, SLICED, W4A8, W4A8_BLOCK

from gemmgen import heuristics
from gemmgen.config import Config
from gemmgen.errors import ArgumentError, IllegalConfig
from gemmgen.ir import nodes as ir
from gemmgen.ir.blocks import is_if
from gemmgen.ir.dtypes import BF16
from gemmgen.ir.rewrite import statements
from gemmgen.pipeline import lower
from gemmgen.recipes import recipe
from gemmgen.target import H200
from gemmgen.verification import NumpyEngine, exact_integers, ladder, product

INT4 = replace(W4A8_BLOCK, weights="int4_128_f32")
SHAPES = tuple((m, 4096, 7168) for m in (1, 16, 64, 128, 512, 4096))
PLAIN = replace(DECODED_FP8, in_flight=0)
WAVES = replace(DECODED_FP8, consumers=1)
SLICES = replace(SLICED, consumers=3, stages=6, in_flight=0)


def test_only_a_has_scales():
    r = recipe("w4a8_block")
    assert (r.scaled, r.scales_b, r.scales_blocks, r.scales_columns) == (True, False, False, False)
    for draw in (exact_integers, ladder):
        x = draw(W4A8_BLOCK, 5, 70, 300, 1)
        assert x.scale_a.shape == (5, 3) and x.scale_b is None
        with pytest.raises(ArgumentError, match="scale_b"):
            product(
                W4A8_BLOCK, replace(x, scale_b=x.scale_a[:1], rows_per_scale=128), NumpyEngine()
            )


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"weights": ""}, "weights='': must be one of e2m1_32_e8m0"),
        ({"b": BF16}, "b='bf16': w4a8_block multiplies e4m3 x e4m3"),
        ({"grouping": "k_columns"}, "grouping='k_columns': must be none that splits K"),
        ({"grouping": "summed"}, "grouping='summed'"),
    ),
)
def test_what_no_config_could_compute_is_refused(changes, message):
    with pytest.raises(ArgumentError, match="^" + message):
        replace(W4A8_BLOCK, **changes)


@pytest.mark.parametrize("grouping", ("none", "batched", "masked", "rows", "ends"))
@pytest.mark.parametrize("of", (W4A8_BLOCK, INT4), ids=lambda p: p.weights)
def test_a_config_is_chosen_for_any_number_of_rows(grouping, of):
    p = replace(of, grouping=grouping)
    for shape in SHAPES:
        c = heuristics.choose(p, shape, H200, 1 if grouping == "none" else 8)
        assert c.swap_ab and c.block_k_bytes == 128
        assert lower(p, c).smem_bytes <= H200.smem_bytes


def test_both_halves_of_a_k_block_are_one_sum():
    """The first begins it, the second adds to it, and what was promoted is released before."""
    kernel = lower(W4A8_BLOCK, PLAIN)
    products = [s for s in statements(kernel) if isinstance(s, ir.MmaDecoded)]
    assert [(s.dst, s.half, s.fresh) for s in products] == [
        ("part", 0, "block"),
        ("part", 1, "never"),
    ]
    (promoted,) = (s for s in statements(kernel) if isinstance(s, ir.Promote))
    assert (promoted.by, promoted.dst, promoted.src) == ("column", "acc0", "part")
    counts = {r.name: r.count for r in kernel.consumer.locals}
    assert (counts["part"], counts["acc0"], counts["column_scales"]) == (8, 8, 4)


def test_scales_of_int4_are_those_of_sums():
    """Read beside codes, of each wave into registers of its own; numbers have none."""
    kernel = lower(INT4, replace(PLAIN, consumers=1))
    reads = [s for s in statements(kernel) if isinstance(s, ir.ReadCodes)]
    assert [(s.beside, s.records) for s in reads] == [
        ("scales", "row_scales0"),
        ("scales", "row_scales1"),
    ]
    assert {(s.by, s.records) for s in statements(kernel) if isinstance(s, ir.Decode)} == {
        ("whole", "")
    }
    promoted = [s for s in statements(kernel) if isinstance(s, ir.Promote)]
    assert [(s.by, s.row_scales) for s in promoted] == [
        ("columns", "row_scales0"),
        ("columns", "row_scales1"),
    ]
    assert INT4.form.block_bytes == W4A8_BLOCK.form.block_bytes == 4352


def test_scales_are_read_once_for_all_waves():
    kernel = lower(W4A8_BLOCK, replace(PLAIN, consumers=1))
    assert sum(isinstance(s, ir.LoadColumnScales) for s in statements(kernel)) == 1
    assert sum(isinstance(s, ir.Promote) for s in statements(kernel)) == 2


def test_two_waves_have_sums_in_turn():
    """One is promoted while the first half of the other is multiplied."""
    products = [s for s in statements(lower(W4A8_BLOCK, WAVES)) if isinstance(s, ir.MmaDecoded)]
    assert [(s.dst, s.wave, s.half) for s in products] == [
        ("part0", 0, 0),
        ("part0", 0, 1),
        ("part1", 1, 0),
        ("part1", 1, 1),
    ]
    with pytest.raises(IllegalConfig, match="promotion-overlaps"):
        lower(W4A8_BLOCK, DECODED_FP8)  # a wave each


def test_warpgroups_that_divide_k_clear_their_sums_once():
    """Before the loop, for the sums that are promoted into begin at 0 in any case."""
    for p, behind in ((W4A8_BLOCK, 0), (W4A8, 1)):
        found = [*statements(lower(p, SLICES))]
        assert sum(isinstance(s, ir.Zero) for s in found) == 1
        assert sum(is_if(s, "idle") for s in found) == behind


def test_sums_that_scales_of_b_promote_are_not_divided():
    with pytest.raises(IllegalConfig, match="slice-sums"):
        lower(FP8, Config(slice_k=True, block_n=64, stages=4))


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "config",
    (
        PLAIN,
        WAVES,
        SLICES,
        replace(PLAIN, split_k=2),
        replace(PLAIN, shares=2),
        replace(PLAIN, ping_pong=True),
    ),
    ids=("plain", "waves", "slices", "split", "shares", "ping-pong"),
)
@pytest.mark.parametrize("shape", ((1, 64, 128), (17, 200, 544), (40, 130, 1300)))
@pytest.mark.parametrize("weights", (W4A8_BLOCK.weights, INT4.weights))
def test_it_is_right(config, shape, weights):
    assert judged(replace(W4A8_BLOCK, weights=weights), config, shape).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("grouping", ("batched", "masked", "rows", "ends"))
@pytest.mark.parametrize("of", (W4A8_BLOCK, INT4), ids=lambda p: p.weights)
def test_groups_are_right(grouping, of):
    assert judged(replace(of, grouping=grouping), PLAIN, (150, 130, 300)).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("of", (W4A8_BLOCK, INT4), ids=lambda p: p.weights)
def test_promotion_beside_products_leaves_the_same_bits(of):
    configs = (
        PLAIN,
        WAVES,
        replace(PLAIN, ping_pong=True),
        replace(PLAIN, block_m=64, consumers=1),
    )
    assert same_bits(of, (40, 130, 544), configs, 3)
