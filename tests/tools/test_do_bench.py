"""`gemmgen.do_bench`: one call, timed as `gemmgen bench` times many. What needs a GPU is in tests/gpu."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import gemmgen
from gemmgen.bench import timing
from gemmgen.errors import ArgumentError, GemmgenError, RuntimeUnavailable
from gemmgen.runtime import torch_tensors

US = (7.0, 5.0, 9.0, 5.0)


class Torch(SimpleNamespace):
    """As much of torch as timing asks of it: a profile in which each call of a kernel takes the next of `US`."""

    def __init__(self, available=True, name="gemm"):
        self.flushed, self.events, self.name = [], [], name
        kind = SimpleNamespace(CUDA="cuda")
        super().__init__(
            int32="int32",
            cuda=SimpleNamespace(is_available=lambda: available, synchronize=lambda: None),
            profiler=SimpleNamespace(ProfilerActivity=kind, profile=self.profile),
            autograd=SimpleNamespace(DeviceType=kind),
        )

    def empty(self, count, dtype, device):
        def flush():
            self.flushed.append(count * 4)
            self.record("bitwise_not_kernel", 100.0)

        return SimpleNamespace(bitwise_not_=flush)

    def record(self, name, us):
        at = SimpleNamespace(start=len(self.events), elapsed_us=lambda: us)
        self.events.append(SimpleNamespace(name=name, device_type="cuda", time_range=at))

    def profile(self, activities, acc_events):
        self.events.clear()  # what ran before is not of it
        return self

    def __enter__(self):
        return SimpleNamespace(events=lambda: self.events)

    def __exit__(self, *_):
        pass

    def call(self):
        calls = sum(e.name == self.name for e in self.events)
        self.record(self.name, US[calls % len(US)])


@pytest.fixture(name="torch")
def torch_fixture(monkeypatch):
    def use(module):
        monkeypatch.setitem(sys.modules, "torch", module)
        torch_tensors.torch.cache_clear()
        return module

    yield use
    torch_tensors.torch.cache_clear()


def test_the_units_are_seconds_and_the_l2_is_cold(torch):
    t = torch(Torch())
    found = gemmgen.do_bench(t.call, repeats=4)
    assert isinstance(found, gemmgen.Samples) and found.kernels == ("gemm",)
    assert found.seconds == pytest.approx([7e-6, 5e-6, 9e-6, 5e-6])
    assert found.median == pytest.approx(6e-6)
    assert found.iqr == pytest.approx(2e-6) and found.spread == pytest.approx(1 / 3)
    assert t.flushed == [timing.FLUSH_BYTES] * 4


def test_a_warm_l2_is_left_alone(torch):
    t = torch(Torch())
    assert len(gemmgen.do_bench(t.call, repeats=np.int64(2), l2="warm").seconds) == 2
    assert t.flushed == [timing.MARK_BYTES] * 2


def test_what_launches_nothing_is_an_error(torch):
    torch(Torch())
    with pytest.raises(GemmgenError, match="left no kernel"):
        gemmgen.do_bench(lambda: None)


def test_without_a_gpu_it_says_so(torch):
    torch(Torch(available=False))
    with pytest.raises(RuntimeUnavailable, match="no CUDA device"):
        gemmgen.do_bench(lambda: None)


def test_arguments_come_before_what_is_missing(torch):
    torch(None)  # an import of it fails
    with pytest.raises(ArgumentError, match="repeats"):
        gemmgen.do_bench(lambda: None, repeats=0)
    with pytest.raises(RuntimeUnavailable, match="torch"):
        gemmgen.do_bench(lambda: None)
