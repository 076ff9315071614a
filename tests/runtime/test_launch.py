"""Plans and launches against a driver that remembers what it was asked. No GPU is needed here."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from gemmgen.config import Config
from gemmgen.errors import ArgumentError, LaunchError
from gemmgen.ir.counts import MOST_SIDE
from gemmgen.ir.dtypes import BF16
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime import driver, launch, tensor_map
from gemmgen.runtime.tensor_map import Matrix

MATRICES = {
    n: Matrix(pointer=i << 20, outer=100, inner=64, stride=64) for i, n in enumerate("abd", 1)
}
VALUES = {"shape_m": 100, "shape_n": 64, "shape_k": 64, "d": 3 << 20, "d_stride": 64}


class Status(SimpleNamespace):
    """As the bindings' enumeration: success is false."""

    def __bool__(self):
        return self.code != 0


OK, NO_CONTEXT, BAD = (
    Status(code=c, name=n)
    for c, n in ((0, "SUCCESS"), (201, "INVALID_CONTEXT"), (1, "INVALID_VALUE"))
)


class Names:
    def __getattr__(self, name):
        return name


class FakeDriver:
    """One context per device; a launch works in that of `device` only."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=OK)
    cuuint64_t = cuuint32_t = CUstream = int
    CUlaunchConfig = SimpleNamespace

    def __init__(self, device=0, current=0):
        self.device, self.contexts = device, [current] if current else []
        self.encoded, self.launched, self.asked, self.status = [], [], [], OK

    def __getattr__(self, name):
        if name.startswith("CU"):
            return Names()
        raise AttributeError(name)

    def cuDeviceGet(self, ordinal):
        return OK, ordinal

    def cuDevicePrimaryCtxRetain(self, device):
        return OK, 100 + device

    def cuCtxGetCurrent(self):
        return OK, self.contexts[-1] if self.contexts else 0

    def cuCtxSetCurrent(self, context):
        self.contexts[-1:] = [context]
        return (OK,)

    def cuCtxPushCurrent(self, context):
        self.contexts.append(context)
        return (OK,)

    def cuCtxPopCurrent(self):
        return OK, self.contexts.pop()

    def cuTensorMapEncodeTiled(self, *args):
        self.encoded.append(args)
        pointer = ctypes.c_uint64(args[2])
        return OK, SimpleNamespace(getPtr=lambda: ctypes.addressof(pointer))

    def cuLaunchKernelEx(self, config, function, params, extra):
        self.asked.append(config.hStream)
        if self.contexts[-1:] != [100 + self.device]:
            return (NO_CONTEXT,)
        if self.status is OK:
            self.launched.append((config, params))
        return (self.status,)


@pytest.fixture
def make(monkeypatch):
    """A loaded kernel on `device`, in a thread whose current context is `current`."""

    def made(device=0, current=100):
        fake = FakeDriver(device, current)
        monkeypatch.setattr(driver, "driver", lambda: fake)
        monkeypatch.setattr(tensor_map, "driver", lambda: fake)
        monkeypatch.setattr(driver, "sm_count", lambda device: 4)
        driver._primary_context.cache_clear()
        loaded = object.__new__(launch.LoadedKernel)
        loaded.kernel = lower(Problem(family="dense", a=BF16, b=BF16), Config())
        loaded.device, loaded._report, loaded._function = device, None, "function"
        return fake, loaded

    yield made
    driver._primary_context.cache_clear()


def planned(loaded, stream=77):
    return loaded.plan((100, 64, 64), MATRICES, VALUES, stream)


@pytest.mark.parametrize(("side", "name"), [*enumerate("mnk")])
def test_a_side_that_is_too_long_is_refused(make, side, name):
    fake, loaded = make()
    shape = [100, 64, 64]
    shape[side] = MOST_SIDE + 1
    with pytest.raises(ArgumentError, match=str(MOST_SIDE)) as e:
        loaded.plan(tuple(shape), MATRICES, VALUES, 77)
    assert e.value.argument == name and not fake.encoded


def test_more_tiles_than_are_counted_are_refused(make):
    fake, loaded = make()
    with pytest.raises(ArgumentError, match=r"tiles of 128 x 128") as e:
        loaded.plan((MOST_SIDE, 128 << 7, 64), MATRICES, VALUES, 77)
    assert e.value.argument == "m, n" and not fake.encoded


def read(plan):
    """What the packed arguments point to: the maps' addresses, then the scalars."""
    kinds = [ctypes.c_uint64] * 3 + [type(x) for x in plan.scalars]
    return [k.from_address(p).value for k, p in zip(kinds, plan.array, strict=True)]


def test_a_plan_launches_where_it_was_asked_to(make):
    fake, loaded = make()
    plan = planned(loaded)
    loaded.launch(plan)
    ((config, params),) = fake.launched
    assert config.hStream == plan.stream == 77 and params == ctypes.addressof(plan.array)
    names = [p.name for p in loaded.kernel.params]
    assert read(plan) == [1 << 20, 2 << 20, 3 << 20, *(VALUES[n] for n in names)]
    assert len(fake.asked) == 1 and fake.contexts == [100]


def test_moving_encodes_what_moved_only(make):
    fake, loaded = make()
    plan = planned(loaded)
    before = read(plan)
    first = fake.encoded[1]
    fake.encoded.clear()
    moved = loaded.moved(plan, {"b": 9 << 20, "d": 8 << 20, "arg_c": 1}, 78)
    assert fake.encoded[0] == (*first[:2], 9 << 20, *first[3:]) and len(fake.encoded) == 2
    assert read(moved) == [1 << 20, 9 << 20, 8 << 20] + [
        8 << 20 if p.name == "d" else VALUES[p.name] for p in loaded.kernel.params
    ]
    assert read(plan) == before and plan.config.hStream == 77
    assert (moved.config.hStream, moved.stream) == (78, 78)
    assert moved.maps[0] is plan.maps[0]
    assert vars(moved.config) == {**vars(plan.config), "hStream": 78}


def test_another_stream_encodes_nothing(make):
    fake, loaded = make()
    plan = planned(loaded)
    fake.encoded.clear()
    assert read(loaded.moved(plan, {}, 5)) == read(plan) and not fake.encoded


@pytest.mark.parametrize("device", (0, 1))
@pytest.mark.parametrize("current", (0, 100, 101))
def test_a_launch_needs_its_context_and_leaves_the_threads_own(make, device, current):
    """A thread without a context stays without one, or with device 0's, which it is on anyway."""
    fake, loaded = make(device, current)
    plan = planned(loaded)
    fake.contexts = [current] if current else []
    loaded.launch(plan)
    assert len(fake.launched) == 1 and len(fake.asked) == 1 + (current != 100 + device)
    left = [current] if current else [100] * (device == 0)
    assert fake.contexts == left
    loaded.launch(plan)
    assert len(fake.launched) == 2 and fake.contexts == left


def test_a_launch_that_fails_twice_is_an_error(make):
    fake, loaded = make()
    plan = planned(loaded)
    fake.status = BAD
    with pytest.raises(LaunchError, match="cuLaunchKernelEx: INVALID_VALUE"):
        loaded.launch(plan)
    assert fake.contexts == [100] and not fake.launched
