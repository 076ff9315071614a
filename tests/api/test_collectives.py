"""The operators of a process group, on ranks of this machine, with float64 in the kernels' place; and what they ask of GPUs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor.experimental", exc_type=ImportError)

import collective_calls as calls  # noqa: E402
from collective_calls import OPS  # noqa: E402
from kernels import DENSE, DENSE_TN  # noqa: E402
from ranks import ranks  # noqa: E402, F401
from torch_reference import on_cpu  # noqa: E402, F401

from gemmgen.ops.arrived import of_all_ranks  # noqa: E402
from gemmgen.runtime.inbox import Inbox, places  # noqa: E402

EPILOGUES = [x for x in OPS["gemm_reduce_scatter"].epilogues if x != "none"]
HALVES = ("gemm_reduce_scatter", "all_gather_gemm")


@pytest.mark.parametrize("count", (2, 4))
@pytest.mark.parametrize("name", OPS)
def test_values(ranks, name, count):  # noqa: F811
    ranks.run(calls.values_of, name, count)
    ranks.run(calls.values_of_said, name, count, {"out_dtype": "f32", "shape": (7, 20, 384)})


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(ranks, epilogue):  # noqa: F811
    for name in (*HALVES, "gemm_all_reduce"):
        ranks.run(calls.values_of, name, 2, epilogue)


@pytest.mark.parametrize("layout", ("nn", "tn", "tt"))
@pytest.mark.parametrize("name", HALVES)
def test_layouts(ranks, name, layout):  # noqa: F811
    ranks.run(calls.values_of, name, 4, "none", layout)


@pytest.mark.parametrize("wire", ("bf16", "f16"))
@pytest.mark.parametrize("name", [x for x in OPS if "gather" not in x])
def test_sums_travel_in_16_bits(ranks, name, wire):  # noqa: F811
    for epilogue in ("none", "bias_silu"):
        ranks.run(calls.values_of_said, name, 4, {"wire": wire, "epilogue": epilogue})


def test_an_fp8_epilogue(ranks):  # noqa: F811
    for name in OPS:
        if name not in HALVES:
            ranks.run(calls.values_of, name, 2, "bias")


@pytest.mark.parametrize("compiled", (False, True))
@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("layout", ("nt", "nn"))
@pytest.mark.parametrize("name", HALVES)
def test_gradients(ranks, name, layout, bias, compiled):  # noqa: F811
    ranks.run(calls.gradients, name, 4 if bias else 2, layout, bias, compiled)


@pytest.mark.parametrize("which", "ab")
@pytest.mark.parametrize("name", HALVES)
def test_one_gradient(ranks, name, which):  # noqa: F811
    ranks.run(calls.one_gradient, name, which)


@pytest.mark.parametrize("name", OPS)
def test_opcheck(ranks, name):  # noqa: F811
    ranks.run(calls.opcheck, name)


def test_rows_of_all_ranks_are_returned(ranks):  # noqa: F811
    ranks.run(calls.gathered)


def test_scales_lie_either_way(ranks):  # noqa: F811
    ranks.run(calls.columns_of_scales)


def test_no_rows(ranks):  # noqa: F811
    ranks.run(calls.no_rows)


def test_a_layer_is_one_graph(ranks):  # noqa: F811
    ranks.run(calls.whole_layer)


def test_explained(ranks):  # noqa: F811
    scatter, never, single, reduce = ranks.run(calls.told)
    assert scatter == (
        "gemm and then reduce_scatter_tensor: tensors are on cpu, where there are no launches"
    )
    assert never == "all_gather_into_tensor and then gemm: fuse=False"
    assert single == "gemm: the group has one rank"
    assert reduce == "gemm and then all_reduce: fuse=False"


def test_errors(ranks):  # noqa: F811
    assert ranks.run(calls.errors) == [
        *("rows of a", "group_name", "wire", "out_dtype", "a", "K of b", "bias"),
        *("epilogue", "layout", "name"),
    ]


@pytest.mark.parametrize("fault", calls.FAULTS)
def test_planted_faults_are_found(ranks, fault):  # noqa: F811
    assert ranks.run(calls.planted, fault) == "found"


@pytest.mark.parametrize("problem", (DENSE, DENSE_TN), ids=("nt", "tn"))
@pytest.mark.parametrize("epoch", (1, 2))
def test_rows_that_lie_in_an_inbox(on_cpu, problem, epoch):  # noqa: F811
    """Padded as TMA wants them, in one of two buffers."""
    parts = [torch.randn(7, 12).bfloat16() for _ in range(3)]
    outer, inner = (12, 7) if problem.mn_major[0] else (7, 12)
    layout = Inbox.of(8192, 3)
    memory = torch.full((8192,), 255, dtype=torch.uint8)
    place = places({"a": (outer, inner, 2)}, 3)["a"]
    elements = memory[layout.buffer(epoch) :].view(torch.bfloat16)
    for rank, x in enumerate(parts):
        to = elements[rank * place.group_stride :].as_strided((outer, inner), (place.stride, 1))
        to.copy_(x.mT if problem.mn_major[0] else x)
    found = of_all_ranks(memory, layout.buffer(epoch), place, problem)
    whole = torch.cat(parts)
    assert torch.equal(found, whole.mT if problem.mn_major[0] else whole)
    assert place.stride > inner and found.is_contiguous()


# ---- groups of GPUs ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    (
        ({}, ""),
        ({2: {"host": "other"}}, "ranks 0 and 2 are on different hosts"),
        ({1: {"name": "H100"}}, "ranks 0 and 1 have different GPUs"),
        ({3: {"sms": 114}}, "the GPUs of ranks 0 and 3 have different numbers of SMs"),
        ({1: {"version": "2"}}, "ranks 0 and 1 run different versions"),
        ({2: {"choice": "other"}}, "ranks 0 and 2 may choose different kernels"),
        ({3: {"refused": "no driver"}}, "rank 3: no driver"),
    ),
)
def test_ranks_tell_each_other_what_they_have(ranks, changes, says):  # noqa: F811
    found = ranks.run(calls.met, changes)
    assert found.startswith(says) and bool(found) == bool(says)


def test_a_rank_without_a_link_speaks_for_all(ranks):  # noqa: F811
    assert ranks.run(calls.met, {}, {2: "no NVLink"}) == "no NVLink"


def test_two_ranks_on_one_gpu_are_refused_by_name(ranks):  # noqa: F811
    found = ranks.run(calls.met, {3: {"gpu": "0000:01:00.0"}})
    assert found.startswith("group_name") and "ranks 1 and 3 on GPU 0000:01:00.0" in found
    elsewhere = {3: {"gpu": "0000:01:00.0", "host": "other"}}
    assert "different hosts" in ranks.run(calls.met, elsewhere)


def test_a_meeting_ends_with_its_group(ranks):  # noqa: F811
    ranks.run(calls.destroyed)


def test_memory_grows(ranks):  # noqa: F811
    ranks.run(calls.grown)


def test_one_launch_where_the_model_says_that_it_pays(ranks):  # noqa: F811
    found = ranks.run(calls.weighed)
    assert {name for name, *_ in found} == {*OPS}
    for _, fuse, fused, why, said in found:
        assert fused == bool(fuse or said)
        assert why == "fuse=True" if fuse else said.reason in why
    paying = [said for _, fuse, _, _, said in found if said and not fuse]
    assert 0 < len(paying) < len(found) / 2


def test_what_a_launch_is_given(ranks):  # noqa: F811
    ranks.run(calls.launched)


def test_what_a_graph_captures(ranks):  # noqa: F811
    gather, never, small, refused, ready = ranks.run(calls.captured)
    assert "raise the flags of an old launch" in gather
    assert never == small and "no call before it needed as much memory" in never
    assert refused == "rank 1: no driver" and ready == "fuse=True"


def test_a_group_is_waited_for(ranks):  # noqa: F811
    ranks.run(calls.waited)


def test_who_compiles_has_not_failed(ranks):  # noqa: F811
    ranks.run(calls.aligned)


def test_a_call_is_planned_once(ranks):  # noqa: F811
    ranks.run(calls.again)
