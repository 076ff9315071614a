"""Scales of A that lie row by row: which kernel reads them, and that nothing but the product is launched."""

from __future__ import annotations

import logging

import pytest
from fake_arrays import Exported
from fake_calls import CONFIG, FP8, block
from fake_torch import Placed, fake_torch_fixture, launches_fixture  # noqa: F401
from kernels import FP8 as PROBLEM

from gemmgen import as_tensor, ops
from gemmgen.config import Config
from gemmgen.errors import ArgumentError, CompileError, IllegalConfig
from gemmgen.ops import bind, building, by_row, refused
from gemmgen.passes.read_lane_scales import LANE_SCALES
from gemmgen.target import H200

READING = Config(block_n=64, stages=2, lane_scales=True)
M, N, K = 24, 40, 640


@pytest.fixture
def on_h200(launches, monkeypatch):
    monkeypatch.setattr(building.driver, "require_hopper", lambda device: H200.device_name)
    building.kept_choice.cache_clear()
    by_row.weighed.cache_clear()
    yield launches
    by_row.weighed.cache_clear()


@pytest.fixture
def copies(monkeypatch):
    """What is copied."""
    found = []
    real = by_row.mn_major
    monkeypatch.setattr(by_row, "mn_major", lambda x: found.append(x) or real(x))
    return found


def given(**changes):
    right = {
        "a": Placed(M, K, dtype=FP8),
        "scale_a": Placed(M, K // 128),
        "b": Placed(N, K, dtype=FP8),
        "scale_b": Placed(1, K // 128),
        "out": Placed(M, N, dtype="bfloat16"),
        "scale_a_layout": "row",
        "config": None,
    }
    return block(**right | changes)


BATCH = {
    "a": Placed(3, M, K, dtype=FP8),
    "scale_a": Placed(3, M, K // 128),
    "b": Placed(3, N, K, dtype=FP8),
    "scale_b": Placed(3, 1, K // 128),
    "out": Placed(3, M, N, dtype="bfloat16"),
}
CALLS = {
    "dense": (ops.fp8_block_gemm, {}),
    "batched": (ops.fp8_block_batched_gemm, BATCH),
    "masked": (
        ops.fp8_block_masked_gemm,
        BATCH | {"group_rows": Placed(3, dtype="int32")},
    ),
    "grouped": (
        ops.fp8_block_grouped_gemm,
        {
            "a": Placed(256, K, dtype=FP8),
            "scale_a": Placed(256, K // 128),
            "b": Placed(3, N, K, dtype=FP8),
            "scale_b": Placed(3, 1, K // 128),
            "out": Placed(256, N, dtype="bfloat16"),
            "row_groups": Placed(256, dtype="int32"),
        },
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_only_the_product_is_launched(name, on_h200, copies):
    """By the choice, with no config given: the first call, and those that are kept."""
    function, changes = CALLS[name]
    call = given(**changes)
    for _ in range(3):
        assert function(**call) is call["out"]
    assert len(on_h200) == 3 and not copies
    scale = call["scale_a"]
    for launch in on_h200:
        assert launch.config.lane_scales and "scale_a" not in launch.matrices
        assert launch.values["scale_a"] == scale.address and not launch.moved
        assert launch.values["scale_a_stride_m"] == K // 128
        assert launch.values["scale_a_stride_k"] == 1
        if scale.dim() == 3:
            assert launch.values["scale_a_stride_g"] == M * K // 128


def test_any_strides(on_h200, copies):
    """Of rows that are no multiple of 16 bytes, of more than there are, and of none."""
    for stride in ((7, 1), (40, 8), (1, M), (0, 1)):
        call = given(scale_a=Placed(M, K // 128, stride=stride))
        ops.fp8_block_gemm(**call)
        found = on_h200[-1].values
        assert (found["scale_a_stride_m"], found["scale_a_stride_k"]) == stride
    assert not copies


def test_other_strides_at_the_same_address_are_another_call(on_h200):
    call = given()
    for stride in ((5, 1), (1, M), (9, 1)) * 2:
        scale = call["scale_a"].seen((M, K // 128), stride)
        ops.fp8_block_gemm(**call | {"scale_a": scale})
        found = on_h200[-1].values
        assert found["scale_a"] == scale.address
        assert (found["scale_a_stride_m"], found["scale_a_stride_k"]) == stride


@pytest.mark.parametrize("config", (None, READING), ids=("chosen", "given"))
@pytest.mark.parametrize("stride", ((-5, 1), (5, -1)))
def test_strides_that_go_back_are_refused(stride, config, on_h200):
    with pytest.raises(ArgumentError, match="negative") as e:
        ops.fp8_block_gemm(**given(scale_a=Placed(M, K // 128, stride=stride), config=config))
    assert e.value.argument == "scale_a strides" and not on_h200


def test_strides_beyond_a_parameter_are_copied(on_h200, copies):
    ops.fp8_block_gemm(**given(scale_a=Placed(M, K // 128, stride=(1 << 31, 1))))
    assert len(copies) == 1 and not on_h200[0].config.lane_scales


@pytest.mark.parametrize("layout", ("row", "mn"))
def test_a_config_says_which(layout, on_h200, copies):
    """It reads either layout in place; without it "row" is copied, as TMA needs columns."""
    scale = Placed(M, K // 128, stride=None if layout == "row" else (1, M))
    call = given(scale_a=scale, scale_a_layout=layout)
    ops.fp8_block_gemm(**call | {"config": READING})
    assert not copies and on_h200[0].values["scale_a"] == scale.address
    ops.fp8_block_gemm(**call | {"config": CONFIG})
    assert len(copies) == (layout == "row")
    assert (on_h200[1].matrices["scale_a"].pointer == scale.address) == (layout == "mn")


def test_the_layout_is_chosen_for_none_but_rows(on_h200):
    ops.fp8_block_gemm(**given(scale_a=Placed(M, K // 128, stride=(1, M)), scale_a_layout="mn"))
    assert not on_h200[0].config.lane_scales


def test_a_copy_that_costs_less_is_made(on_h200, copies, monkeypatch):
    monkeypatch.setattr(by_row, "COPY", -1.0)
    ops.fp8_block_gemm(**given())
    assert len(copies) == 1 and not on_h200[0].config.lane_scales


@pytest.mark.parametrize("m", (1, 64, 512, 4096))
def test_what_pays(m):
    """The longer the product, the less is saved by what a launch takes at least."""
    plain = Config(block_m=64, block_n=64, consumers=1, stages=8)
    reading = plain.having(lane_scales=True)
    assert by_row.weighed(PROBLEM, plain, (m, 512, 2048), 1, H200) == (reading, True)
    assert by_row.weighed(PROBLEM, plain, (m * 4096, 8192, 16384), 1, H200) == (reading, False)


def test_it_is_weighed_once(on_h200, monkeypatch):
    """Over tensors at other addresses, which no call is kept for, the model is not asked again."""
    asked, real = [], by_row.cost
    monkeypatch.setattr(by_row, "cost", lambda *args: asked.append(args) or real(*args))
    for _ in range(3):
        ops.fp8_block_gemm(**given())
    assert len(asked) == 2 and len(on_h200) == 3
    ops.fp8_block_gemm(
        **given(a=Placed(2 * M, K, dtype=FP8), scale_a=Placed(2 * M, K // 128), out=None)
    )
    assert len(asked) == 4


@pytest.fixture
def unlearned():
    refused.forget()
    yield
    refused.forget()


def test_what_the_build_refuses_is_copied(on_h200, copies, monkeypatch, caplog, unlearned):
    """And is not built again in this process."""
    asked, real = [], building.loaded

    def refusing(p, c, device):
        asked.append(c)
        if c.lane_scales:
            raise CompileError("C7510", lasting=True)
        return real(p, c, device)

    monkeypatch.setattr(building, "loaded", refusing)
    with caplog.at_level(logging.WARNING):
        ops.fp8_block_gemm(**given())
        ops.fp8_block_gemm(**given())
    assert len(copies) == 2 and [x.config.lane_scales for x in on_h200] == [False, False]
    assert [c.lane_scales for c in asked] == [True, False, False] and caplog.records


def test_what_the_rules_refuse_is_copied(on_h200, copies, monkeypatch, caplog):
    def refusing(p, c):
        raise IllegalConfig(LANE_SCALES, {"lane_scales": c.lane_scales}, "Use lane_scales=false.")

    by_row._is_legal.cache_clear()
    monkeypatch.setattr(by_row, "lower", refusing)
    with caplog.at_level(logging.WARNING):
        ops.fp8_block_gemm(**given())
    by_row._is_legal.cache_clear()
    assert len(copies) == 1 and [x.config.lane_scales for x in on_h200] == [False]
    assert not caplog.records


def test_what_may_succeed_another_time_is_not_hidden(on_h200, monkeypatch):
    def failing(p, c, device):
        raise CompileError("no room on the disk", lasting=False)

    monkeypatch.setattr(building, "loaded", failing)
    with pytest.raises(CompileError, match="disk"):
        ops.fp8_block_gemm(**given())


def test_it_can_be_bound(on_h200):
    """A bound launch copies nothing; so it takes rows where they are read in place."""
    call = given()
    launch = bind(ops.fp8_block_gemm, **call)
    other = Placed(M, K // 128)
    launch.rebind(scale_a=other)()
    with pytest.raises(ArgumentError, match="strides"):
        launch.rebind(scale_a=Placed(M, K // 128, stride=(9, 1)))
    assert on_h200[0].moved["scale_a"] == other.address
    with pytest.raises(ArgumentError, match="lane_scales") as e:
        bind(ops.fp8_block_gemm, **call | {"config": CONFIG})
    assert e.value.argument == "scale_a"


def test_arrays_of_other_libraries_are_read_in_place(on_h200):
    """They cannot be copied, so nothing is weighed."""
    a, b = (as_tensor(Exported(x, K, dtype="uint8"), dtype="e4m3") for x in (M, N))
    scale = Exported(M, K // 128, dtype="float32")
    call = {"a": a, "scale_a": scale, "b": b, "scale_b": Exported(1, K // 128, dtype="float32")}
    out = as_tensor(Exported(M, N, dtype="uint16"), dtype="bf16")
    ops.fp8_block_gemm(**call, out=out, scale_a_layout="row")
    assert on_h200[0].config.lane_scales and on_h200[0].values["scale_a"] == scale.address
    with pytest.raises(ArgumentError, match="'mn'"):
        ops.fp8_block_gemm(**call, out=out, scale_a_layout="row", config=CONFIG)
