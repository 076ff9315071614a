"""The runtime's errors, with the driver and NVRTC faked or absent. No GPU is needed here."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest

from gemmgen.config import Config
from gemmgen.errors import ArgumentError, CompileError, LaunchError, RuntimeUnavailable
from gemmgen.ir.dtypes import BF16
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime import driver, launch, nvrtc, tensor_map
from gemmgen.runtime.tensor_map import Matrix

LOG = "ptxas info : Used 168 registers, used 3 barriers\n  0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"


@pytest.fixture(autouse=True)
def fresh():
    cached = (driver.driver, driver.require_hopper, driver.sm_count, nvrtc.bindings)
    for f in cached:
        f.cache_clear()
    yield
    for f in cached:
        f.cache_clear()


@pytest.mark.parametrize("code", nvrtc.FATAL)
def test_serialised_or_ignored_is_an_error(code):
    with pytest.raises(CompileError, match=code):
        nvrtc.checked("k", b"", 0.1, f"{LOG}\n(C75xx) info {code}: potential loss")


@pytest.mark.parametrize("what", ["stores", "loads"])
def test_any_spill_is_an_error(what):
    with pytest.raises(CompileError, match="spills"):
        nvrtc.checked("k", b"", 0.1, LOG.replace(f"0 bytes spill {what}", f"4 bytes spill {what}"))


def test_a_clean_log_passes():
    cubin = nvrtc.checked("k", b"elf", 0.1, LOG)
    assert (cubin.registers, cubin.barriers, cubin.spill_bytes) == (168, 3, 0)


def test_without_cuda_python(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(RuntimeUnavailable, match="pip install"):
        nvrtc.bindings()


def test_without_a_driver(monkeypatch):
    def absent(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    for _ in range(2):  # a second call must not hang either
        with pytest.raises(RuntimeUnavailable, match="driver"):
            driver.driver()


class FakeDriver:
    """Enough of cuda.bindings.driver to answer questions about one device."""

    CUresult = SimpleNamespace(CUDA_SUCCESS="ok")
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
    )

    def __init__(self, capability):
        self.capability = dict(zip(("major", "minor"), capability, strict=True))

    def cuDeviceGetCount(self):
        return "ok", 1

    def cuDeviceGet(self, ordinal):
        return "ok", ordinal

    def cuDeviceGetAttribute(self, attribute, device):
        return "ok", self.capability[attribute]

    def cuDeviceGetName(self, size, device):
        return "ok", b"Some GPU" + b"\0" * 8 + b" " * 8

    def cuFail(self):
        return (SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE"),)


def test_a_gpu_that_is_not_hopper(monkeypatch):
    monkeypatch.setattr(driver, "driver", lambda: FakeDriver((8, 0)))
    with pytest.raises(RuntimeUnavailable, match=r"8\.0"):
        driver.require_hopper(0)


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr(driver, "driver", lambda: FakeDriver((9, 0)))
    assert driver.require_hopper(0) == "Some GPU"
    with pytest.raises(RuntimeUnavailable, match="device=3"):
        driver.require_hopper(3)


def test_a_driver_error_names_the_call(monkeypatch):
    monkeypatch.setattr(driver, "driver", lambda: FakeDriver((9, 0)))
    with pytest.raises(LaunchError, match=r"cuFail: CUDA_ERROR_INVALID_VALUE"):
        driver.call("cuFail")


GOOD = Matrix(pointer=1 << 20, outer=100, inner=64, stride=64)


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("a", {"pointer": (1 << 20) + 8}),
        ("a", {"pointer": 0}),
        ("a row stride", {"stride": 68}),
        ("a row stride", {"stride": 56}),
        ("a row stride", {"stride": 1 << 40}),
        ("a shape", {"inner": 0, "stride": 64}),
        ("a shape", {"outer": 0}),
    ],
)
def test_what_a_tensor_map_cannot_describe(argument, changes):
    values = {"pointer": GOOD.pointer, "outer": 100, "inner": 64, "stride": 64} | changes
    with pytest.raises(ArgumentError) as e:
        tensor_map.check("a", Matrix(**values), BF16.bytes)
    assert e.value.argument == argument
    tensor_map.check("a", GOOD, BF16.bytes)


def test_kernel_parameters_are_in_the_order_of_the_signature():
    from gemmgen.emit import signature

    kernel = lower(Problem(family="dense", a=BF16, b=BF16), Config())
    names = [s.split()[-1] for s in signature(kernel)]
    assert names == [m.name for m in kernel.maps] + [p.name for p in kernel.params]


def test_no_more_clusters_than_run_at_once():
    """An H200's 132 SMs run 30 clusters of four at once, and 15 of eight."""
    for split_k, ctas in ((1, 131), (2, 132), (4, 120), (8, 120)):
        config = Config(block_m=64, block_n=32, consumers=1, split_k=split_k)
        kernel = lower(Problem(family="dense", a=BF16, b=BF16), config)
        assert launch.grid(kernel, (4096, 4096, 512), 132) == ctas
        assert launch.grid(kernel, (64, 32, 512), 132) == split_k
        assert launch.grid(kernel, (4096, 4096, 512), 8) == 8
