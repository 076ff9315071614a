"""Arrays that say they are on a GPU, as other libraries' do, and a driver that remembers who waits for whom."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from gemmgen.runtime import dlpack, driver

CUDA, MANAGED = 2, 13


def aligned(shape, dtype) -> np.ndarray:
    """Zeros at a multiple of 256 bytes, where an allocator of a GPU begins."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 256, np.uint8)
    first = -memory.ctypes.data % 256
    return memory[first : first + size].view(dtype).reshape(shape)


class Exported:
    """Exports NumPy's capsule, changed to say it is on a GPU, of another type if `code` is given."""

    def __init__(self, *shape, dtype="float16", code=None, device=(CUDA, 0), held=None):
        self.held = aligned(shape, dtype) if held is None else held
        self.code, self.device, self.streams = code, device, []

    @property
    def address(self):
        return self.held.ctypes.data

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        capsule = self.held.__dlpack__()
        where = dlpack._pointer(capsule, dlpack.FRESH)
        tensor = ctypes.cast(where, ctypes.POINTER(dlpack._Managed)).contents.tensor
        tensor.device.kind, tensor.device.index = self.device
        if self.code is not None:
            tensor.dtype.code = self.code
        return capsule


class Described:
    """Has the CUDA array interface only."""

    def __init__(self, *shape, dtype="float16", stream=None, readonly=False, **changed):
        self.held = aligned(shape, dtype)
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": self.held.dtype.str,
            "data": (self.held.ctypes.data, readonly),
            "strides": None,
            "stream": stream,
            **changed,
        }

    __cuda_array_interface__ = None

    @property
    def address(self):
        return self.held.ctypes.data


class Waits:
    """A driver. What it remembers: (stream that waits, stream that is waited for)."""

    CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL=9)
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)

    def __init__(self):
        self.found, self.events, self.device = [], {}, 0

    def call(self, function, *args):
        return getattr(self, function)(*args)

    def cuPointerGetAttribute(self, attribute, address):
        return self.device

    def cuEventCreate(self, flags):
        self.events[len(self.events) + 1] = None
        return len(self.events)

    def cuEventRecord(self, event, stream):
        self.events[event] = stream

    def cuStreamWaitEvent(self, stream, event, flags):
        self.found.append((stream, self.events[event]))

    def cuEventDestroy(self, event):
        self.events[event] = "destroyed"


@pytest.fixture(name="waits")
def waits_fixture(monkeypatch):
    fake = Waits()
    monkeypatch.setattr(driver, "driver", lambda: fake)
    monkeypatch.setattr(driver, "call", fake.call)
    monkeypatch.setattr(driver, "current", lambda device: nullcontext())
    return fake
