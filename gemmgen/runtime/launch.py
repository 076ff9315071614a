"""A loaded kernel and its launch plans: everything a launch needs, prepared once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import ArgumentError, LaunchError
from ..ir import dealing
from ..ir.counts import INT_LIMIT, MOST_SIDE, check_maps, check_side, check_tiles
from ..ir.groupings import summed_k
from ..ir.heads import check_columns, gaps_of
from ..ir.launchable import Launchable
from ..ir.nodes import Kernel
from ..ir.squares import SQUARES
from ..ir.squares import check_columns as check_squares
from ..ir.stamps import ring_bytes
from ..target import clusters
from . import driver, nvrtc, sms, watchdog
from .compiled import Compiled
from .tensor_map import Encoded, Matrix, check, describe, encode, lying

MAP_BYTES = 128

Scalar = int | float
C_TYPES = {"int": ctypes.c_int32, "long long": ctypes.c_int64, "float": ctypes.c_float}


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """One launch on one stream, ready to go. `start()` is the driver's, its arguments bound: it returns the
    status in a tuple. The rest is what it points into, and what `LoadedKernel.moved` reads."""

    start: Callable[[], tuple[Any, ...]]
    config: Any  # CUlaunchConfig
    stream: int
    maps: tuple[Encoded, ...]  # in the order of the kernel's
    scalars: tuple[Any, ...]  # ctypes, in the order of the kernel's parameters
    array: Any  # void*[], of the addresses of all of them


class LoadedKernel(Compiled):
    """A kernel on one device. Thread-safe: it and its plans are immutable."""

    def __init__(
        self, kernel: Launchable, cubin: nvrtc.Cubin, device: int = 0, source: str | None = None
    ) -> None:
        """Load `cubin`, compiled from `source` if that is at hand. Raises RuntimeUnavailable without a driver or
        on a GPU that is not Hopper."""
        driver.require_hopper(device)
        super().__init__(kernel, cubin, source)
        self.device = device
        with driver.current(device):
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

    def plan(
        self,
        shape: tuple[int, int, int],
        matrices: Mapping[str, Matrix],
        values: Mapping[str, Scalar],
        stream: int,
    ) -> Plan:
        """The launch of shape (M, N, K) over `matrices` (by tensor name) with the kernel's remaining
        parameters `values` (integers, floats, device pointers).

        Raises ArgumentError naming the argument; LaunchError if the driver refuses.
        """
        groups = int(values.get("groups", 1))
        check_launch(self.kernel, shape, groups)
        check_gaps(self.kernel, shape[1], matrices["d"])
        check("d", matrices["d"], self.kernel.buffer("smem_d").dtype.bytes)
        if self.kernel.pointed:
            values = {**values, **lying(matrices)}
        for x in self.kernel.pointed:
            check(x.tensor, matrices[x.tensor], x.dtype.bytes)
        if self._report:
            values = {**values, "watchdog": self._report.device_pointer}
        ctas = grid(self.kernel, shape, sms.usable(self.device), groups)
        with driver.current(self.device):
            return self._ready(
                (encode(describe(self.kernel, m, matrices[m.tensor])) for m in self.kernel.maps),
                (packed(p.ctype, p.name, values) for p in self.kernel.params),
                self._config(ctas, stream),
                stream,
            )

    def moved(self, plan: Plan, addresses: Mapping[str, int], stream: int) -> Plan:
        """`plan` on `stream`, with each tensor and pointer that `addresses` names at its new address.
        The rest is kept. Nothing is checked: an address must be aligned as the old one was."""
        params = (p.name for p in self.kernel.params)
        config = plan.config
        if stream != plan.stream:
            config = self._config(config.gridDimX, stream)
        with driver.current(self.device):
            return self._ready(
                (
                    old.at(addresses[m.tensor]) if m.tensor in addresses else old
                    for m, old in zip(self.kernel.maps, plan.maps, strict=True)
                ),
                (
                    type(old)(addresses[name]) if name in addresses else old
                    for name, old in zip(params, plan.scalars, strict=True)
                ),
                config,
                stream,
            )

    def launch(self, plan: Plan) -> None:
        """Start `plan` on its stream; returns before it finishes. Leaves the thread's current device alone.
        Raises LaunchError."""
        if plan.start()[0]:
            self.retry(plan)

    def retry(self, plan: Plan) -> None:
        """Start `plan`, which the driver has refused, with the kernel's context current: this thread had
        none, or another device's. That is asked only now, for it is rare and costs as much as a launch.
        A kernel exists in its own context only, so what was refused has not run. Raises LaunchError."""
        with driver.current(self.device):
            driver.result("cuLaunchKernelEx", plan.start())

    def wait(self, plan: Plan) -> None:
        """Block until `plan`'s stream is done. Raises LaunchError, and DeadlockError with a table of
        who waits where if a watched kernel stopped itself."""
        try:
            with driver.current(self.device):
                driver.call("cuStreamSynchronize", plan.config.hStream)
        except LaunchError as e:
            entries = self._report.entries() if self._report else []
            if entries:
                assert isinstance(self.kernel, Kernel)  # no record of a watched one is made
                raise watchdog.deadlock(self.kernel, entries) from e
            raise

    def grid(self, shape: tuple[int, int, int], groups: int = 1) -> int:
        """CTAs of a launch on this device at most, however many SMs it may take then."""
        return grid(self.kernel, shape, driver.sm_count(self.device), groups)

    def _config(self, ctas: int, stream: int) -> Any:
        config = driver.driver().CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = ctas, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.kernel.threads, 1, 1
        config.sharedMemBytes = self.kernel.smem_bytes
        config.hStream = driver.driver().CUstream(stream)
        config.attrs = _attributes(self.kernel)
        config.numAttrs = len(config.attrs)
        return config

    def _ready(
        self, maps: Iterable[Encoded], scalars: Iterable[Any], config: Any, stream: int
    ) -> Plan:
        maps, scalars = tuple(maps), tuple(scalars)
        pointers = [m.map.getPtr() for m in maps] + [ctypes.addressof(s) for s in scalars]
        array = (ctypes.c_void_p * len(pointers))(*pointers)
        launch = driver.driver().cuLaunchKernelEx
        return Plan(
            start=partial(launch, config, self._function, ctypes.addressof(array), 0),
            config=config,
            stream=stream,
            maps=maps,
            scalars=scalars,
            array=array,
        )


def grid(kernel: Launchable, shape: tuple[int, int, int], sms: int, groups: int = 1) -> int:
    """CTAs of a persistent launch on `sms` SMs: whole clusters, no more than run at once or than there can
    be tiles in `groups` groups of `shape`; and where the host knows how many there are, no more than take all in
    as few turns: others would only share power and L2. Of CTAs that take stretches of K blocks as many as `dealing.ctas` says."""
    b, c = kernel.block, kernel.cluster
    # Of ranks that add their sums up each one's rows are a group's.
    tiles_m = -(-shape[0] // (b.m * c.m))
    tiles_n = -(-shape[1] // (b.n * c.n))
    grids = 1 if kernel.groups.summed else groups
    tiles, most = grids * tiles_m * tiles_n, clusters(sms, c.size) * kernel.per_sm
    if kernel.workspace.words:
        k_blocks = -(-summed_k(kernel.groups.summed, shape[2], groups, b.k) // b.k)
        return dealing.ctas(tiles, k_blocks, most)
    turns = 1 if kernel.groups.ragged or kernel.groups.step else -(-tiles // max(1, most))
    return min(-(-tiles // turns), most) * c.size


def workspace_bytes(kernel: Launchable, ctas: int, groups: int) -> int:
    """Global memory in which a launch of `ctas` CTAs keeps the tensor maps it derives: per CTA and group,
    so that none is written twice. 0 if it derives none. Raises ArgumentError for more groups than it counts."""
    check_maps(kernel, ctas, groups)
    return MAP_BYTES * sum(m.derived for m in kernel.maps) * ctas * groups


def partials_bytes(kernel: Launchable, ctas: int) -> int:
    """Global memory by which the CTAs of a launch hand sums over, 0 if they do not. It is zero before a launch; what is
    not sums is zero after it."""
    return 4 * kernel.workspace.words * ctas


def stamp_bytes(kernel: Launchable, ctas: int) -> int:
    """Global memory in which a launch of `ctas` CTAs leaves its stamps: a ring per CTA and warpgroup, in this
    order. 0 if the kernel has none."""
    return ctas * kernel.threads // 128 * ring_bytes(kernel.stamps)


def _attributes(kernel: Launchable) -> list[Any]:
    """A launch may begin before the one before it on the stream has ended, if its kernel waits for that. Where CTAs wait for other
    ranks, all of them run at once."""
    asked = []
    if kernel.pdl:
        overlaps = _asked("CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION")
        overlaps.value.programmaticStreamSerializationAllowed = 1
        asked.append(overlaps)
    if kernel.peers.slot:
        together = _asked("CU_LAUNCH_ATTRIBUTE_COOPERATIVE")
        together.value.cooperative = 1
        asked.append(together)
    return asked


def _asked(name: str) -> Any:
    """An attribute without its value."""
    attribute = driver.driver().CUlaunchAttribute()
    attribute.id = getattr(driver.driver().CUlaunchAttributeID, name)
    return attribute


def packed(ctype: str, name: str, values: Mapping[str, Scalar]) -> Any:
    """The argument `name` as the kernel takes it; a type of no number is a pointer. Raises ArgumentError."""
    value = values[name]
    if ctype == "int" and not 0 <= value < INT_LIMIT:
        raise ArgumentError(name, value, "must be from 0 to 2**31 - 1")
    return C_TYPES.get(ctype, ctypes.c_uint64)(value)  # type: ignore[arg-type]


def check_launch(kernel: Launchable, shape: tuple[int, int, int], groups: int = 1) -> None:
    """Raise ArgumentError unless `kernel` can compute `groups` groups of `shape`."""
    for name, side in zip("mnk", shape, strict=True):
        check_side(name, side)
    if shape[1] % kernel.block.fold:
        raise ArgumentError("n", shape[1], "must be even: the epilogue pairs columns")
    if shape[0] % kernel.block.fold_rows:
        allowed = f"must be a multiple of {kernel.block.fold_rows}: the epilogue sums as many rows"
        raise ArgumentError("m", shape[0], allowed)
    rows = groups * shape[0] // kernel.block.fold_rows
    if kernel.block.fold_rows > 1 and rows >= INT_LIMIT:  # their windows are counted
        raise ArgumentError(
            "groups, m", (groups, shape[0]), f"must make less than {INT_LIMIT} rows of D"
        )
    if kernel.block.one_block and shape[2] > kernel.block.k:
        allowed = f"must be at most {kernel.block.k} with one_block: the kernel has no loop over K"
        raise ArgumentError("k", shape[2], allowed)
    check_columns(gaps_of(kernel.maps), "n", shape[1], MOST_SIDE)
    if any(x.name == SQUARES for x in kernel.params):
        check_squares(shape[1] // kernel.block.fold - 1)
    for x in kernel.pointed:
        if shape[2] % x.step:
            allowed = (
                f"must be a multiple of {x.step} with direct: rows are read 16 bytes at a time"
            )
            raise ArgumentError("k", shape[2], allowed)
    check_tiles(kernel, shape, groups)


def check_gaps(kernel: Launchable, n: int, d: Matrix) -> None:
    """Raise ArgumentError unless D has the columns of n of the product and of the gaps between them, if `kernel` leaves out any."""
    heads = gaps_of(kernel.maps)
    if heads.mid and d.inner != heads.columns(n):
        allowed = f"must be {heads.columns(n)}, of {n} and the {heads.mid} left out in each head"
        raise ArgumentError("d columns", d.inner, allowed)
