"""The rules by which DTensors go through `torch.ops.gemmgen`, and DTensors by every rule on ranks of this machine, with float64
in the kernels' place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor.experimental", exc_type=ImportError)

import dtensors  # noqa: E402
from dtensors import case  # noqa: E402
from ranks import ranks  # noqa: E402, F401
from torch_reference import BY_NAME, by_name, every, referring_on_cpu  # noqa: E402

from gemmgen.ir.linearity import homogeneous  # noqa: E402
from gemmgen.torch_ops import OPERATORS  # noqa: E402
from gemmgen.torch_ops.sharding import Sharding  # noqa: E402

# Of each operator, the sizes that ranks may divide; of a tensor that is quantised also what stands before rows and columns.
DIVISIBLE = {
    "gemm": "MNK",
    "batched_gemm": "GMNK",
    "masked_gemm": "GNK",
    "grouped_gemm": "MNK",
    "k_grouped_gemm": "MN",
    "summed_gemm": "GMNK",
    "fp8_block_gemm": "MNK",
    "fp8_block_batched_gemm": "GMNK",
    "fp8_block_masked_gemm": "GNK",
    "fp8_block_grouped_gemm": "MNK",
    "int8_block_gemm": "MNK",
    "fp8_wgrad_gemm": "MNK",
    "fp8_k_grouped_gemm": "MN",
    "fp8_gemm": "MNK",
    "fp8_batched_gemm": "GMNK",
    "fp8_masked_gemm": "GNK",
    "fp8_grouped_gemm": "MNK",
    "int8_gemm": "MNK",
    "int8_batched_gemm": "GMNK",
    "int8_masked_gemm": "GNK",
    "int8_grouped_gemm": "MNK",
    "quantise_rows": "0MK",
    "quantise_blocks": "0MK",
}
DIVIDED = [op for op in OPERATORS if not op.coded]  # blocks of 4 bits are of one rank
OVERLOADS = [(op.name, o) for op in DIVIDED for o in op.overloads if o != "out"]
EPILOGUES = [x for x in BY_NAME["gemm"].epilogues if x != "none"]


def divisible(name, among=2, shape=None, overload="", epilogue="none", **more):
    op = BY_NAME[name]
    given = case(op, overload, epilogue, shape, more)
    return "".join(Sharding(op=op, overload=overload, given=given).divisible(among))


def test_every_operator_has_rules():
    assert {*DIVISIBLE} == {op.name for op in DIVIDED}


def test_parts_by_every_rule_make_the_whole():
    with referring_on_cpu():
        for name, overload in OVERLOADS:
            op = BY_NAME[name]
            given = case(op, overload)
            for size in divisible(name, overload=overload):
                dtensors.in_parts(op, overload, given, size)


@pytest.mark.parametrize(("name", "overload"), OVERLOADS, ids=lambda x: x or "default")
def test_every_rule(ranks, name, overload):  # noqa: F811
    sizes = DIVISIBLE[name].replace("K", "" if overload == "quantised" else "K")
    found = ranks.run(dtensors.every_rule, name, overload)
    assert found == {2: sizes, 4: sizes.translate({ord("G"): None, ord("0"): None})}  # of 3


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_every_rule_of_epilogues(ranks, epilogue):  # noqa: F811
    e = BY_NAME["gemm"].epilogues[epilogue]
    found = ranks.run(dtensors.every_rule, "gemm", "", epilogue)
    assert found[2] == found[4] == ("MN" if homogeneous(e) is None else "MNK")


@pytest.mark.parametrize("op", every("quantised"), ids=by_name)
@pytest.mark.parametrize("epilogue", ("bias_residual", "scaled_swiglu"))
def test_every_rule_of_groups_that_an_epilogue_reads(ranks, op, epilogue):  # noqa: F811
    said = {"out_dtype": "f32"} if "s32" in op.outputs else {}
    ranks.run(dtensors.every_rule, op.name, "", epilogue, said)
    ranks.run(dtensors.every_rule, op.name, "quantised", epilogue)


@pytest.mark.parametrize("layout", ("nn", "tn", "tt"))
@pytest.mark.parametrize("name", ("gemm", "batched_gemm", "masked_gemm", "k_grouped_gemm"))
def test_every_rule_of_layouts(ranks, name, layout):  # noqa: F811
    found = ranks.run(dtensors.every_rule, name, "", "none", {"layout": layout})
    assert found[2] == DIVISIBLE[name]


@pytest.mark.parametrize("name", ("grouped_gemm", "fp8_block_grouped_gemm"))
def test_every_rule_of_groups_that_end_somewhere(ranks, name):  # noqa: F811
    ends = {"row_groups": None, "group_ends": torch.tensor([100, 300, 512]).int()}
    assert ranks.run(dtensors.every_rule, name, "", "none", ends)[2] == "NK"


@pytest.mark.parametrize(("name", "overload"), OVERLOADS, ids=lambda x: x or "default")
def test_tensors_that_lie_in_any_way(ranks, name, overload):  # noqa: F811
    op = BY_NAME[name]
    epilogues = ["none", "bias_residual"][: 1 + ("epilogue" in op.parameters)]
    said = {"out_dtype": "f32"} if "s32" in op.outputs else {}
    odd = (512 if op.grouping == "ends" else 37, 144, 384 if op.grouping == "k_columns" else 272)
    for epilogue in epilogues:
        for shape in (None, odd):
            ranks.run(dtensors.any_placements, name, overload, epilogue, shape, said)


def test_what_was_decided_of_one_call_is_not_of_another(ranks):  # noqa: F811
    ranks.run(dtensors.calls_that_differ_in_little)


def test_what_is_promised_of_tensors_is_not_of_what_torch_moves(ranks):  # noqa: F811
    ranks.run(dtensors.promises)


def test_errors(ranks):  # noqa: F811
    names = ["out", "K of b", "bias", "chosen", "slots", "slots", "x", "a", "heads"]
    assert ranks.run(dtensors.errors) == names


def test_compiled(ranks):  # noqa: F811
    ranks.run(dtensors.compiled)


# ---- what is not divided --------------------------------------------------------------------


@pytest.mark.parametrize("name", ("fp8_block_gemm", "int8_block_gemm", "fp8_wgrad_gemm"))
@pytest.mark.parametrize("k", (384, 128, 500, 640))
def test_a_block_of_scales_stays_whole_along_k(name, k):
    assert "K" not in divisible(name, shape=(256, 256, k))
    assert "K" in divisible(name, shape=(256, 256, 256))


@pytest.mark.parametrize("n", (384, 128, 250))
def test_a_block_of_scales_stays_whole_along_n(n):
    assert divisible("fp8_block_gemm", shape=(40, n, 256)) == "MK"
    assert divisible("fp8_block_gemm", shape=(40, 256, 256)) == "MNK"


def test_scales_of_an_fp8_result_stay_whole():
    for name in ("gemm", "fp8_gemm"):
        assert divisible(name, shape=(40, 384, 256), overload="quantised") == "M"
        assert divisible(name, shape=(40, 256, 256), overload="quantised") == "MN"
        swiglu = {"overload": "quantised", "epilogue": "swiglu"}
        assert divisible(name, shape=(40, 256, 256), **swiglu) == "M"
        assert divisible(name, shape=(40, 512, 256), **swiglu) == "MN"


def test_pairs_of_columns_stay_together():
    assert "N" in divisible("gemm", shape=(40, 18, 64))
    assert "N" not in divisible("gemm", shape=(40, 18, 64), epilogue="swiglu")
    assert "N" not in divisible("gemm", shape=(40, 18, 64), epilogue="residual")


def test_rows_begin_where_the_copy_engine_can():
    """A rank's part of what is stored contiguously is a multiple of 16 bytes."""
    for k, bf16, fp8 in ((32, True, True), (24, False, False), (16, True, False)):
        assert ("K" in divisible("gemm", shape=(40, 64, k))) is bf16
        assert ("K" in divisible("fp8_gemm", shape=(40, 64, k))) is fp8
    for m, inside in ((32, True), (24, False)):
        assert ("M" in divisible("gemm", shape=(m, 64, 64), layout="tn")) is inside
        assert "M" in divisible("gemm", shape=(m, 64, 64))


def test_rows_of_one_group_stay_together():
    assert "M" in divisible("grouped_gemm", shape=(512, 64, 64))
    assert "M" not in divisible("grouped_gemm", shape=(384, 64, 64))
    assert "M" in divisible("grouped_gemm", shape=(384, 64, 64), alignment=64)


def test_rows_may_be_divided_unevenly_and_columns_may_not():
    assert divisible("gemm", shape=(37, 63, 64)) == "MK"
    assert divisible("gemm", shape=(37, 64, 64), among=3) == "M"


def test_a_vector_of_another_shape_is_not_divided():
    bias, rows = torch.rand(64), torch.rand(40)
    assert divisible("gemm", shape=(40, 64, 64), epilogue="bias", bias=bias) == "MNK"
    assert divisible("gemm", shape=(40, 64, 64), epilogue="bias", bias=bias[None]) == "MK"
    assert divisible("fp8_gemm", shape=(40, 64, 64), scale_a=rows[:, None]) == "NK"
    assert divisible("fp8_gemm", shape=(40, 64, 64), scale_a=rows[:1]) == "MNK"


def test_flat_groups_are_not_divided():
    x = torch.zeros(512 * 64)
    assert divisible("fp8_k_grouped_gemm", packing="flat", a=x, b=x) == ""


def test_a_scale_per_row_needs_the_row():
    assert divisible("quantise_rows", block=None) == "0M"


def test_bits_that_are_promised_are_not_added_up_by_ranks():
    assert divisible("gemm", shape=(40, 64, 64), invariant=True) == "MN"


def test_without_dtensors_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(Sharding, "divisible", lambda *a: pytest.fail("asked"))
    a = torch.ones(8, 16).bfloat16()
    with referring_on_cpu():
        assert torch.equal(torch.ops.gemmgen.gemm(a, a), torch.full((8, 8), 16.0).bfloat16())
