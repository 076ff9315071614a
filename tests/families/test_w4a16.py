"""The family of 16-bit activations and weights of 4 bits: what it takes, what is chosen for it, and the kernel's own K loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import judged
from grouped import layout
from kernels import DECODED, VARIETY, W4A8, W4A16

from gemmgen import heuristics
from gemmgen.config import Config
from gemmgen.cost import cost
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError, IllegalConfig
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import BF16, E4M3, F16
from gemmgen.ir.packed import FORMS, OF_16_BITS, plain_weights
from gemmgen.ir.rewrite import statements
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.target import H200

SHAPES = tuple((m, 8192, 8192) for m in (1, 16, 64, 128, 512, 4096))


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"weights": ""}, r"weights='': must be one of int4_32_bf16, "),
        ({"weights": "int4_128_f16"}, "weights='int4_128_f16': must be one of int4_32_bf16, "),
        ({"weights": 4}, "weights=4: must be one of"),
        ({"weights": "e2m1_32_e8m0", "a": F16, "b": F16}, "weights='e2m1_32_e8m0': must be one of int4_32_f16"),  # packed for BF16
        ({"weights": "e2m1_32_e8m0_f16"}, "weights='e2m1_32_e8m0_f16': must be one of int4_32_bf16"),
        ({"layout": "nn"}, "layout='nn': must be nt for weights=int4_128_bf16"),
        ({"grouping": "k_columns"}, "grouping='k_columns': must be none that splits K"),
        ({"family": "dense"}, "weights='int4_128_bf16': must be '' in dense"),
        ({"b": F16}, "b='f16': w4a16 multiplies bf16 x bf16 or f16 x f16"),
    ),
)  # fmt: skip
def test_what_no_config_could_compute_is_refused(changes, message):
    with pytest.raises(ArgumentError, match="^" + message):
        replace(W4A16, **changes)


@pytest.mark.parametrize("to", OF_16_BITS, ids=str)
def test_json_says_the_weights(to):
    for name in FORMS[to]:
        p = Problem(family="w4a16", a=to, b=to, weights=name)
        assert p.to_json()["weights"] == name and Problem.from_json(p.to_json()) == p
    assert "weights" not in Problem(family="dense", a=to, b=to).to_json()
    assert plain_weights(to) in FORMS[to]


@pytest.mark.parametrize("grouping", ("none", "batched", "masked", "rows", "ends"))
@pytest.mark.parametrize("weights", ("int4_128_bf16", "int4_32_bf16_zeros", "e2m1_32_e8m0"))
def test_a_config_is_chosen_for_any_number_of_rows(weights, grouping):
    p = replace(W4A16, weights=weights, grouping=grouping)
    for shape in SHAPES:
        c = heuristics.choose(p, shape, H200, 1 if grouping == "none" else 8)
        assert c.swap_ab and c.block_k_bytes == 256
        assert lower(p, c).smem_bytes <= H200.smem_bytes


@pytest.mark.parametrize("family", (W4A16, W4A8), ids=lambda p: p.family)
@pytest.mark.parametrize("epilogue", ("none", "swiglu"))
def test_an_fp8_output_has_tiles_whose_columns_share_a_scale(family, epilogue):
    p = replace(family, d=E4M3, epilogue=EPILOGUES[epilogue])
    for shape in SHAPES:
        c = heuristics.choose(p, shape, H200)
        assert c.consumers == 1 and not c.slice_k
        lower(p, c)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", [n for n, (p, _) in VARIETY.items() if p.weights])
def test_sums_are_exact(name):
    """Rows, columns and K that end inside of a tile, of a block and of a group."""
    p, c = VARIETY[name]
    shape = (300, 130, 272)
    groups = None if p.grouping == "none" else layout(p, shape, (130, 0, 41))
    assert judged(p, c, shape, groups, pad=1).exact


@pytest.mark.nvrtc
@pytest.mark.parametrize("problem", (W4A16, W4A8), ids=lambda p: p.family)
def test_four_warpgroups_decode(problem):
    """Each has 64 rows of weights; more consumers than operands as they are may have."""
    deep = FORMS[problem.b][problem.weights].k_bytes
    c = Config(
        swap_ab=True,
        block_m=16,
        block_n=256,
        block_k_bytes=deep,
        consumers=4,
        stages=3,
        in_flight=1,
    )
    assert judged(problem, c, (37, 300, 272), pad=1).exact
    with pytest.raises(IllegalConfig, match="slice-consumers"):
        lower(problem, replace(c, ping_pong=True))


def test_few_rows_divide_k_and_many_have_large_tiles():
    few, many = (heuristics.choose(W4A16, SHAPES[i], H200) for i in (0, -1))
    assert few.block_m == 8 and few.slice_k and few.stages % few.consumers == 0
    narrow = heuristics.choose(W4A16, (1, 4096, 7168), H200)  # too few tiles to draw all bandwidth
    assert narrow.split_k > 1 and not narrow.slice_k
    assert many.block_m * many.block_n >= 128 * 192 and many.split_k == 1


def test_weights_are_a_quarter_of_what_is_read():
    c = replace(DECODED, stages=8)
    dense = cost(Problem(family="dense", a=BF16, b=BF16), Config(), SHAPES[0], H200).dram_bytes
    for weights, bits in (("int4_128_bf16", 4 + 16 / 128), ("e2m1_32_e8m0", 4 + 8 / 32)):
        found = cost(replace(W4A16, weights=weights), c, SHAPES[0], H200).dram_bytes
        assert found / dense == pytest.approx(bits / 16, rel=1e-2)


@pytest.mark.parametrize(("in_flight", "released"), ((0, "last"), (1, "first")))
def test_a_stage_is_released_when_its_last_wgmma_is_known_to_be_over(in_flight, released):
    """In flight, that is known after the first half of the next K block has been waited for."""
    kernel = lower(W4A16, replace(DECODED, in_flight=in_flight))
    loop = next(s for s in statements(kernel) if isinstance(s, ir.ForK))
    kinds = [type(s) for s in loop.body]
    waits = [i for i, kind in enumerate(kinds) if kind is ir.WgmmaWait]
    at = kinds.index(ir.If if in_flight else ir.Arrive)
    assert len(waits) == 2 and at == waits[0 if released == "first" else 1] + 1


def test_halves_of_a_wave_follow_each_other():
    kernel = lower(W4A16, replace(DECODED, consumers=1, stages=3))  # two waves of one warpgroup
    found = [(s.wave, s.half) for s in statements(kernel) if isinstance(s, ir.MmaDecoded)]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]
