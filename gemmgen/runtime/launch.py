"""A loaded kernel and its launch plans: everything a launch needs, prepared once."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError, LaunchError
from ..ir.nodes import Kernel
from ..target import clusters
from . import driver, nvrtc, sms, watchdog
from .tensor_map import Matrix, check, describe, encode

PLANS = 256  # kept per kernel, least recently used dropped
INT_LIMIT = 1 << 31
MAP_BYTES = 128

Scalar = int | float
C_TYPES = {"int": ctypes.c_int32, "long long": ctypes.c_int64, "float": ctypes.c_float}


@dataclass(frozen=True)
class Plan:
    """One launch, ready to go: arguments packed, grid chosen. `keep` holds what they point into."""

    config: Any  # CUlaunchConfig
    params: int  # void**
    keep: tuple[Any, ...]


class LoadedKernel:
    """A kernel on one device. Thread-safe: plans are immutable, the table of plans is locked."""

    def __init__(self, kernel: Kernel, cubin: nvrtc.Cubin, device: int = 0) -> None:
        """Load `cubin`. Raises RuntimeUnavailable without a driver or on a GPU that is not Hopper."""
        driver.require_hopper(device)
        driver.use(device)
        self.kernel = kernel
        self.cubin = cubin
        self.device = device
        self._module = driver.call("cuModuleLoadData", cubin.image)
        self._function = driver.call("cuModuleGetFunction", self._module, cubin.name.encode())
        attribute = driver.driver().CUfunction_attribute
        driver.call(
            "cuFuncSetAttribute",
            self._function,
            attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            kernel.smem_bytes,
        )
        self._report = watchdog.Report() if kernel.watchdog else None
        self._plans: OrderedDict[object, Plan] = OrderedDict()
        self._lock = threading.Lock()

    def plan(
        self,
        shape: tuple[int, int, int],
        matrices: Mapping[str, Matrix],
        values: Mapping[str, Scalar],
        stream: int,
    ) -> Plan:
        """The launch of shape (M, N, K) over `matrices` (by tensor name) with the kernel's remaining
        parameters `values` (integers, floats, device pointers), prepared now or taken from the table.

        Raises ArgumentError naming the argument; LaunchError if the driver refuses.
        """
        usable = sms.usable(self.device)
        key = (shape, *matrices.values(), *values.values(), stream, usable)
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        plan = self._prepare(shape, matrices, values, stream, usable)
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > PLANS:
                self._plans.popitem(last=False)
        return plan

    def launch(self, plan: Plan) -> None:
        """Start `plan` on its stream; returns before it finishes."""
        driver.use(self.device)
        driver.call("cuLaunchKernelEx", plan.config, self._function, plan.params, 0)

    def wait(self, plan: Plan) -> None:
        """Block until `plan`'s stream is done. Raises LaunchError, and DeadlockError with a table of
        who waits where if a watched kernel stopped itself."""
        driver.use(self.device)
        try:
            driver.call("cuStreamSynchronize", plan.config.hStream)
        except LaunchError as e:
            entries = self._report.entries() if self._report else []
            if entries:
                raise watchdog.deadlock(self.kernel, entries) from e
            raise

    def grid(self, shape: tuple[int, int, int], groups: int = 1) -> int:
        """CTAs of a launch on this device at most, however many SMs it may take then."""
        return grid(self.kernel, shape, driver.sm_count(self.device), groups)

    def _prepare(
        self,
        shape: tuple[int, int, int],
        matrices: Mapping[str, Matrix],
        values: Mapping[str, Scalar],
        stream: int,
        usable: int,
    ) -> Plan:
        driver.use(self.device)
        _check_shape(shape, self.kernel.block.fold)
        check("d", matrices["d"], self.kernel.buffer("smem_d").dtype.bytes)
        maps = [encode(describe(self.kernel, m, matrices[m.tensor])) for m in self.kernel.maps]
        if self._report:
            values = {**values, "watchdog": self._report.device_pointer}
        scalars = [_packed(p.ctype, p.name, values) for p in self.kernel.params]
        pointers = [m.getPtr() for m in maps] + [ctypes.addressof(s) for s in scalars]
        array = (ctypes.c_void_p * len(pointers))(*pointers)
        config = driver.driver().CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (
            grid(self.kernel, shape, usable, int(values.get("groups", 1))),
            1,
            1,
        )
        config.blockDimX, config.blockDimY, config.blockDimZ = self.kernel.threads, 1, 1
        config.sharedMemBytes = self.kernel.smem_bytes
        config.hStream = driver.driver().CUstream(stream)
        config.attrs = _attributes(self.kernel)
        config.numAttrs = len(config.attrs)
        return Plan(config, ctypes.addressof(array), (maps, scalars, array))


def grid(kernel: Kernel, shape: tuple[int, int, int], sms: int, groups: int = 1) -> int:
    """CTAs of a persistent launch on `sms` SMs: whole clusters, no more than run at once or than there can
    be tiles in `groups` groups of `shape`."""
    b, c = kernel.block, kernel.cluster
    tiles_m = -(-shape[0] // (b.m * c.m))
    tiles_n = -(-shape[1] // (b.n * c.n))
    return min(groups * tiles_m * tiles_n, clusters(sms, c.size)) * c.size


def workspace_bytes(kernel: Kernel, ctas: int, groups: int) -> int:
    """Global memory in which a launch of `ctas` CTAs keeps the tensor maps it derives: per CTA and group,
    so that none is written twice. 0 if it derives none."""
    return MAP_BYTES * sum(m.derived for m in kernel.maps) * ctas * groups


def _attributes(kernel: Kernel) -> list[Any]:
    """A launch may begin before the one before it on the stream has ended, if its kernel waits for that."""
    if not kernel.pdl:
        return []
    cu = driver.driver()
    allowed = cu.CUlaunchAttribute()
    allowed.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    allowed.value.programmaticStreamSerializationAllowed = 1
    return [allowed]


def _packed(ctype: str, name: str, values: Mapping[str, Scalar]) -> Any:
    value = values[name]
    if ctype == "int" and not 0 <= value < INT_LIMIT:
        raise ArgumentError(name, value, "must be from 0 to 2**31 - 1")
    return C_TYPES.get(ctype, ctypes.c_uint64)(value)  # type: ignore[arg-type]


def _check_shape(shape: tuple[int, int, int], fold: int) -> None:
    for name, side in zip("mnk", shape, strict=True):
        if not 0 < side < INT_LIMIT:
            raise ArgumentError(name, side, "must be from 1 to 2**31 - 1")
    if shape[1] % fold:
        raise ArgumentError("n", shape[1], "must be even: the epilogue pairs columns")
