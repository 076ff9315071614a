"""The family of 16-bit activations and weights of 8 bits: what it takes, what is chosen for it, and its registers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import judged
from kernels import DECODED, W8A16

from gemmgen import heuristics
from gemmgen.cli.options import with_weights
from gemmgen.config import Config
from gemmgen.cost import cost
from gemmgen.epilogues import EPILOGUES
from gemmgen.errors import ArgumentError, IllegalConfig
from gemmgen.ir import nodes as ir
from gemmgen.ir.dtypes import BF16, E4M3, F16, F32
from gemmgen.ir.packed import OF_8_BITS, OF_16_BITS
from gemmgen.ir.rewrite import statements
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.target import H200

SHAPES = tuple((m, 8192, 8192) for m in (1, 16, 64, 128, 512, 4096))
PROBLEMS = [
    Problem(family="w8a16", a=to, b=to, d=to, weights=name) for to in OF_16_BITS for name in OF_8_BITS[to]
]  # fmt: skip
problems = pytest.mark.parametrize("p", PROBLEMS, ids=lambda p: p.weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"weights": ""}, "weights='': must be one of int8_column_f32, e4m3_column_f32"),
        ({"weights": "int4_128_bf16"}, "weights='int4_128_bf16': must be one of int8_column_f32, "),
        ({"weights": "int8_column_f32_f16"}, "weights='int8_column_f32_f16': must be one of"),
        ({"a": F16, "b": F16}, "weights='int8_column_f32': must be one of int8_column_f32_f16, "),
        ({"family": "w4a16"}, "weights='int8_column_f32': must be one of int4_32_bf16"),
        ({"layout": "tn"}, "layout='tn': must be nt for weights=int8_column_f32"),
        ({"grouping": "k_columns"}, "grouping='k_columns': must be none that splits K"),
        ({"a": E4M3, "b": E4M3}, "a='e4m3': w8a16 multiplies bf16 x bf16 or f16 x f16"),
    ),
)
def test_what_no_config_could_compute_is_refused(changes, message):
    with pytest.raises(ArgumentError, match="^" + message):
        replace(W8A16, **changes)


@problems
def test_json_says_the_weights(p):
    assert p.to_json()["weights"] == p.weights and Problem.from_json(p.to_json()) == p


@pytest.mark.parametrize("to", OF_16_BITS, ids=str)
def test_a_command_takes_int8_where_nothing_is_said(to):
    said = {"family": "w8a16", "a": to.name, "b": to.name}
    assert with_weights(said) == said | {"weights": next(iter(OF_8_BITS[to]))}
    given = said | {"weights": [*OF_8_BITS[to]][1]}
    assert with_weights(given) == given


@pytest.mark.parametrize("grouping", ("none", "batched", "masked", "rows", "ends"))
@problems
def test_a_config_is_chosen_for_any_number_of_rows(p, grouping):
    p = replace(p, grouping=grouping)
    for shape in SHAPES:
        c = heuristics.choose(p, shape, H200, 1 if grouping == "none" else 8)
        assert c.swap_ab and c.block_k_bytes == 256
        assert lower(p, c).smem_bytes <= H200.smem_bytes


def test_few_rows_divide_k_and_many_have_large_tiles():
    few, many = (heuristics.choose(W8A16, SHAPES[i], H200) for i in (0, -1))
    assert few.block_m == 8 and few.slice_k
    assert many.block_m * many.block_n >= 128 * 128 and many.split_k == 1


@pytest.mark.parametrize("epilogue", ("none", "swiglu"))
def test_an_fp8_output_has_tiles_whose_columns_share_a_scale(epilogue):
    p = replace(W8A16, d=E4M3, epilogue=EPILOGUES[epilogue])
    for shape in SHAPES:
        lower(p, heuristics.choose(p, shape, H200))


def test_a_k_block_has_128_columns():
    with pytest.raises(IllegalConfig, match="Use block_k_bytes=256 and multicast=none or a"):
        lower(W8A16, replace(DECODED, block_k_bytes=128))
    with pytest.raises(IllegalConfig, match="Use swap_ab=true"):
        lower(W8A16, Config())


def test_weights_are_half_of_what_is_read():
    dense = cost(Problem(family="dense", a=BF16, b=BF16), Config(), SHAPES[0], H200).dram_bytes
    found = cost(W8A16, replace(DECODED, stages=8), SHAPES[0], H200).dram_bytes
    assert found / dense == pytest.approx(1 / 2, rel=1e-2)


@problems
def test_a_thread_has_16_words_of_codes_and_no_records(p):
    kernel = lower(p, replace(DECODED, stages=3))
    counts = {r.name: r.count for role in kernel.roles for r in role.locals}
    assert (counts["first_half"], counts["second_half"], counts["codes"]) == (16, 16, 16)
    assert "records" not in counts
    reads = [s for s in statements(kernel) if isinstance(s, ir.ReadCodes)]
    assert all((s.beside, s.records) == ("nothing", "") for s in reads)
    assert {s.smem for s in reads} == {"smem_b"} and kernel.buffer("smem_b").row_bytes == 8192


@pytest.mark.nvrtc
@problems
def test_four_warpgroups_decode(p):
    c = replace(DECODED, block_n=256, consumers=4, stages=3)
    assert judged(replace(p, d=F32), c, (37, 300, 272), pad=1).exact


@pytest.mark.nvrtc
@problems
def test_warpgroups_divide_k(p):
    c = replace(DECODED, block_n=64, consumers=4, stages=8, block_m=8, slice_k=True)
    assert judged(p, c, (5, 130, 1160), pad=1).exact
