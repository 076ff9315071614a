"""The CUDA driver: found once, spoken to in one place, every status checked."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from ..errors import LaunchError, RuntimeUnavailable
from .nvrtc import INSTALL

HOPPER = (9, 0)


@cache
def driver() -> Any:
    """The driver bindings, initialised. Raises RuntimeUnavailable if there is no driver or no GPU.

    libcuda is looked up before the bindings touch it: without one they can hang on a second call.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        raise RuntimeUnavailable(
            "no CUDA driver (libcuda.so.1) on this machine: emit and compile work, running needs "
            "a Hopper GPU with NVIDIA driver 580 or newer"
        ) from e
    try:
        from cuda.bindings import driver as cu
    except ImportError as e:
        raise RuntimeUnavailable(f"cuda-python is not installed ({e}). Run: {INSTALL}") from e
    (status,) = cu.cuInit(0)
    if status != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeUnavailable(f"the CUDA driver does not start: {status.name}")
    return cu


def call(function: str, *args: Any) -> Any:
    """Call a driver function by name, check its status, return its single result or tuple.

    Raises LaunchError naming the function and the driver's error.
    """
    return result(function, getattr(driver(), function)(*args))


def result(function: str, returned: tuple[Any, ...]) -> Any:
    """What the driver's `function` returned besides its status, a value or a tuple. Raises LaunchError
    as `call` does."""
    status, *results = returned
    if status != driver().CUresult.CUDA_SUCCESS:
        raise LaunchError(f"{function}: {status.name}")
    return results[0] if len(results) == 1 else tuple(results)


@cache
def require_hopper(device: int) -> str:
    """The name of CUDA device `device`. Raises RuntimeUnavailable if it is not compute capability 9.0."""
    count = call("cuDeviceGetCount")
    if not 0 <= device < count:
        raise RuntimeUnavailable(f"device={device}: this machine has {count} CUDA device(s)")
    handle = call("cuDeviceGet", device)
    attribute = driver().CUdevice_attribute
    capability = (
        call(
            "cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle
        ),
        call(
            "cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle
        ),
    )
    name = call("cuDeviceGetName", 128, handle).decode().split("\0")[0]
    if capability != HOPPER:
        got = ".".join(map(str, capability))
        raise RuntimeUnavailable(
            f"device={device} ({name}) has compute capability {got}; gemmgen's kernels are sm_90a "
            "code and need 9.0 (H100, H200)"
        )
    return str(name)


@cache
def sm_count(device: int) -> int:
    return attribute(device, "MULTIPROCESSOR_COUNT")


def attribute(device: int, name: str) -> int:
    """Of CUDA device `device`, CU_DEVICE_ATTRIBUTE_<name>. Raises LaunchError."""
    asked = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call("cuDeviceGetAttribute", asked, call("cuDeviceGet", device)))


def version() -> tuple[int, int]:
    """The newest CUDA that it runs. Raises RuntimeUnavailable, LaunchError."""
    number = int(call("cuDriverGetVersion"))
    return number // 1000, number % 1000 // 10


def pci_bus_id(device: int) -> str:
    """Where device `device` is, as `0000:3b:00.0`: NVML and nvidia-smi number devices their own way."""
    name: bytes = call("cuDeviceGetPCIBusId", 13, call("cuDeviceGet", device))
    return name.split(b"\0")[0].decode()


def device_of(address: int) -> int:
    """The number of the CUDA device in whose memory `address` is. Raises LaunchError if it is in none's."""
    attribute = driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(call("cuPointerGetAttribute", attribute, address))


def device_at(bus_id: str) -> int | None:
    """The number of the device at that `pci_bus_id`; None if this process does not see it."""
    seen = range(int(call("cuDeviceGetCount")))
    return next((i for i in seen if pci_bus_id(i) == bus_id), None)


def linked(device: int, other: int) -> bool:
    """Whether NVLink connects CUDA devices `device` and `other`: they access each other's memory, and atomics there are the
    hardware's, which PCIe has not."""
    asked = driver().CUdevice_P2PAttribute
    names = "ACCESS_SUPPORTED", "NATIVE_ATOMIC_SUPPORTED"
    pair = tuple(call("cuDeviceGet", x) for x in (device, other))
    return all(
        int(call("cuDeviceGetP2PAttribute", getattr(asked, f"CU_DEVICE_P2P_ATTRIBUTE_{x}"), *pair))
        for x in names
    )


def let_access(device: int, other: int) -> None:
    """Let CUDA device `device` access memory of `other`. Raises RuntimeUnavailable if it cannot, LaunchError."""
    if not call("cuDeviceCanAccessPeer", *(call("cuDeviceGet", x) for x in (device, other))):
        raise RuntimeUnavailable(f"device={device} cannot access the memory of device {other}")
    with current(device):
        returned = driver().cuCtxEnablePeerAccess(_primary_context(other), 0)
    if returned[0] != driver().CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
        result("cuCtxEnablePeerAccess", returned)


def wait_for(streams: Iterable[int], stream: int, device: int) -> None:
    """Let what is queued on `stream` of `device` from now on wait for what is queued on `streams` now."""
    for other in streams:
        with current(device):
            flags = driver().CUevent_flags.CU_EVENT_DISABLE_TIMING
            event = call("cuEventCreate", flags)
            try:
                call("cuEventRecord", event, other)
                call("cuStreamWaitEvent", stream, event, 0)
            finally:
                call("cuEventDestroy", event)


@cache
def _primary_context(device: int) -> Any:
    return call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", device))


@contextmanager
def current(device: int) -> Iterator[None]:
    """`device`'s primary context, current on this thread meanwhile. Torch uses the same one, and its current
    device is that of the current context: so another one is put back."""
    context = _primary_context(device)
    if device == 0 and not int(call("cuCtxGetCurrent")):
        call("cuCtxSetCurrent", context)  # stays: a thread without a context is on device 0
        yield
        return
    call("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


def use(device: int) -> None:
    """Make `device`'s primary context current on this thread, for a process that has no other device."""
    call("cuCtxSetCurrent", _primary_context(device))
