"""`ops.limit_sms`: fewer CTAs, configs chosen for them, and no launch that forgets it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_torch import Placed, fake_torch_fixture  # noqa: F401
from kernels import DENSE

from gemmgen import ops
from gemmgen.config import Config
from gemmgen.errors import ArgumentError
from gemmgen.heuristics.tuned import pick
from gemmgen.ops.front import KEPT
from gemmgen.pipeline import lower
from gemmgen.runtime import launch, sms
from gemmgen.runtime.tensor_map import Matrix
from gemmgen.target import H200

SHAPE = (132 * 128, 100 * 128, 512)  # tiles that 132 SMs take evenly, and 100
CUBIN = SimpleNamespace(image=b"", name="k")
CONFIG = Config(block_m=128, block_n=128, stages=4)


@pytest.fixture(autouse=True)
def unlimited():
    yield
    ops.limit_sms(None)


@pytest.fixture
def gpu(monkeypatch):
    """A driver of one GPU with 132 SMs. What it launches: the configs."""
    launched = []
    forget()  # what another test made launches by its driver

    def started(config, function, params, extra):
        launched.append(config)
        return (0,)

    made = SimpleNamespace(
        CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=0),
        CUlaunchConfig=SimpleNamespace,
        CUstream=int,
        cuLaunchKernelEx=started,
    )
    fake = {"driver": lambda: made, "call": lambda function, *args: None}
    fake |= {"current": lambda device: nullcontext()}
    fake |= {"require_hopper": lambda device: "NVIDIA H200", "sm_count": lambda device: 132}
    for name, function in fake.items():
        monkeypatch.setattr(launch.driver, name, function)
    encoded = SimpleNamespace(map=SimpleNamespace(getPtr=lambda: 0))
    monkeypatch.setattr(launch, "encode", lambda description: encoded)
    yield launched
    forget()


def forget():
    """Kernels and calls that are kept."""
    KEPT.clear()
    ops.building.loaded.cache_clear()
    ops.building.given.cache_clear()


def kernel(config=CONFIG):
    return launch.LoadedKernel(lower(DENSE, config), CUBIN)


def plan(loaded, stream=0):
    m, n, k = SHAPE
    matrices = {
        name: Matrix(pointer=1 << 20, outer=outer, inner=inner, stride=inner)
        for name, outer, inner in (("a", m, k), ("b", n, k), ("d", m, n))
    }
    sizes = {"shape_m": m, "shape_n": n, "shape_k": k, "groups": 1}
    store = {"d": 1 << 20, "d_stride": n, "d_stride_g": 0}
    return loaded.plan(SHAPE, matrices, sizes | store, stream)


@pytest.mark.parametrize(
    ("config", "limit", "ctas"),
    (
        (CONFIG, None, 132),
        (CONFIG, 132, 132),
        (CONFIG, 1000, 132),
        (CONFIG, 100, 100),
        (CONFIG, 8, 8),
        (Config(block_m=128, block_n=128, stages=4, multicast="a"), 101, 100),
        (Config(block_m=128, block_n=32, stages=2, split_k=8), 8, 8),
        (Config(block_m=128, block_n=32, stages=2, split_k=8), 15, 8),
    ),
)
def test_a_launch_takes_so_many_sms(gpu, config, limit, ctas):
    ops.limit_sms(limit)
    loaded = kernel(config)
    loaded.launch(plan(loaded))
    assert gpu[0].gridDimX == ctas


def test_a_plan_made_before_is_not_used_after(gpu):
    loaded = kernel()
    grids = []
    for limit in (None, 64, None, 64):
        ops.limit_sms(limit)
        grids.append(plan(loaded).config.gridDimX)
    assert grids == [132, 64, 132, 64]


def test_workspaces_are_for_all_sms(gpu):
    """Another thread may lift the limit between the allocation and the launch."""
    ops.limit_sms(16)
    assert kernel().grid(SHAPE) == 132


@pytest.mark.parametrize(
    ("tiles", "sms", "ctas"),
    ((512, 132, 128), (133, 132, 67), (132, 132, 132), (5, 132, 5), (7, 3, 3)),
)
def test_no_more_ctas_than_take_all_tiles_in_as_few_turns(tiles, sms, ctas):
    assert launch.grid(lower(DENSE, CONFIG), (128, tiles * 128, 64), sms) == ctas


def test_the_host_does_not_know_how_many_tiles_ragged_groups_have():
    masked = lower(replace(DENSE, grouping="masked"), CONFIG)
    assert launch.grid(masked, (128, 512 * 128, 64), 132) == 132


def test_configs_are_chosen_for_so_many_sms(monkeypatch):
    asked = []

    def recorded(p, shape, target, groups, device, unbuilt, **of):
        asked.append(target.sms)
        return pick(p, shape, target, groups, device, unbuilt, **of)

    monkeypatch.setattr(ops.building, "pick", recorded)
    monkeypatch.setattr(ops.building.driver, "require_hopper", lambda device: H200.device_name)
    ops.building.kept_choice.cache_clear()
    for limit in (None, 16, 16, None, 500):
        ops.limit_sms(limit)
        ops.chosen(DENSE, SHAPE)
        ops.chosen(DENSE, SHAPE)
    assert asked == [132, 16, 16, 132, 132]
    ops.building.kept_choice.cache_clear()


@pytest.mark.parametrize("count", (8, 9, 15, 17))
def test_there_is_a_config_for_few_sms(count):
    sms.limit(count, H200)
    assert pick(DENSE, SHAPE, sms.limited(H200)).config


@pytest.mark.parametrize("count", (0, 7, -1, 1.5, "8"))
def test_limits_that_leave_no_cluster(count):
    with pytest.raises(ArgumentError) as e:
        ops.limit_sms(count)
    assert e.value.argument == "count" and "at least 8" in str(e.value)
    assert ops.sm_limit() is None


def test_what_was_set():
    ops.limit_sms(64)
    assert ops.sm_limit() == 64
    ops.limit_sms(None)
    assert ops.sm_limit() is None


def test_every_launch_of_a_function_asks(gpu, monkeypatch):
    """The same tensors again, after the limit changed."""
    monkeypatch.setattr(
        ops.building, "built", lambda p, c: SimpleNamespace(kernel=lower(p, c), cubin=CUBIN)
    )
    monkeypatch.setattr(ops.calls, "current_stream", lambda device: 0)
    m, n, k = SHAPE
    a, b = (Placed(side, k, dtype="bfloat16") for side in (m, n))
    out = Placed(m, n, dtype="bfloat16")
    for limit in (None, 64, 32, None):
        ops.limit_sms(limit)
        ops.gemm(a, b, out, config=CONFIG)
    assert [c.gridDimX for c in gpu] == [132, 64, 32, 132]
