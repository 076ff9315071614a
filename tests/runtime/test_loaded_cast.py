"""How casts are launched, with a driver that only notes it. No GPU is needed here."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from gemmgen.casts import Cast
from gemmgen.errors import ArgumentError, LaunchError
from gemmgen.ir.dtypes import BF16, E4M3
from gemmgen.runtime import driver, sms
from gemmgen.runtime.loaded_cast import LoadedCast
from gemmgen.runtime.nvrtc import Cubin

ROW = Cast(x=BF16, q=E4M3, per="row", row_threads=128)
VALUES = {"x": 1 << 40, "q": 2 << 40, "scale": 3 << 40, "x_stride": 72, "rows": 5, "columns": 70}
SMS, STREAM = 10, 77
REFUSED = 400


@pytest.fixture
def gpu(monkeypatch):
    """statuses: what the next launches return, then 0. launches: grid, block, stream and arguments of each, and
    whether the kernel's own context was current."""
    at = SimpleNamespace(statuses=[], launches=[], current=0)

    def launch(function, *rest):
        *sides, shared, stream, array, extra = rest
        assert (function, shared, extra) == ("function", 0, 0)
        addresses = ctypes.cast(array, ctypes.POINTER(ctypes.c_void_p))
        kinds = [ctypes.c_uint64] * 3 + [ctypes.c_int32] * 3
        given = [k.from_address(addresses[i]).value for i, k in enumerate(kinds)]
        at.launches.append((sides[0], sides[3], stream, given, at.current))
        return (at.statuses.pop(0) if at.statuses else 0,)

    @contextmanager
    def current(device):
        at.current += 1
        yield
        at.current -= 1

    def result(name, returned):
        if returned[0]:
            raise LaunchError(name)

    monkeypatch.setattr(driver, "require_hopper", lambda device: "NVIDIA H200")
    monkeypatch.setattr(driver, "current", current)
    monkeypatch.setattr(driver, "call", lambda name, *args: "function")
    monkeypatch.setattr(driver, "result", result)
    monkeypatch.setattr(driver, "driver", lambda: SimpleNamespace(cuLaunchKernel=launch))
    monkeypatch.setattr(sms, "usable", lambda device: SMS)
    return at


def loaded():
    cubin = Cubin(
        name=ROW.name,
        image=b"",
        registers=40,
        spill_bytes=0,
        stack_bytes=0,
        barriers=1,
        seconds=0.0,
        log="",
    )
    return LoadedCast(ROW, cubin, 0)


def test_a_launch(gpu):
    loaded().launch(VALUES, 5, STREAM)
    assert gpu.launches == [(5, 128, STREAM, [*VALUES.values()], 0)]


def test_no_more_ctas_than_run_at_once(gpu):
    loaded().launch(VALUES, 1 << 20, STREAM)
    assert gpu.launches[0][0] == SMS * ROW.ctas_per_sm


def test_what_is_refused_is_tried_in_the_kernels_context(gpu):
    gpu.statuses = [REFUSED]
    loaded().launch(VALUES, 5, STREAM)
    assert [x[-1] for x in gpu.launches] == [0, 1] and gpu.current == 0


def test_what_is_refused_again_is_an_error(gpu):
    gpu.statuses = [REFUSED, REFUSED]
    with pytest.raises(LaunchError):
        loaded().launch(VALUES, 5, STREAM)


def test_a_size_that_no_integer_holds(gpu):
    with pytest.raises(ArgumentError) as e:
        loaded().launch({**VALUES, "columns": 1 << 31}, 5, STREAM)
    assert e.value.argument == "columns" and not gpu.launches
