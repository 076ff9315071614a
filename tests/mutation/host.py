"""Faults of the host: in what a tensor map says, and in the runtime's own text; and who checks it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from importlib import import_module, reload
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gemmgen.config import Config
from gemmgen.errors import ArgumentError
from gemmgen.ir.dtypes import BF16
from gemmgen.pipeline import lower
from gemmgen.problem import Problem
from gemmgen.runtime import emulated, launch, tensor_map
from gemmgen.runtime.tensor_map import Matrix

from .mutant import Mutant

PROBLEM = Problem(family="dense", a=BF16, b=BF16)


def plant(m: Mutant) -> bool:
    """Put the fault into this process. True if it is one of the host's text."""
    if m.describe:
        _describe(*m.describe)
    if m.host:
        module = import_module(m.host[0])
        text = Path(str(module.__file__)).read_text()
        assert m.host[1] in text, f"{m.id}: not in {module.__name__}"
        exec(compile(text.replace(m.host[1], m.host[2]), module.__name__, "exec"), module.__dict__)
        for user in (launch, emulated):
            if user is not module:
                reload(user)
    return bool(m.host)


def _describe(tensor: str, change: Callable[[Any], Any]) -> None:
    right = emulated.describe

    def describe(kernel: Any, m: Any, matrix: Any) -> Any:
        found = right(kernel, m, matrix)
        return change(found) if m.tensor == tensor else found

    emulated.describe = describe


def checks() -> Iterator[str]:
    """What the host's tests say, without a GPU."""
    for check in (refuses, encodes, launches):
        try:
            text = check()
        except Exception as e:
            text = f"{check.__name__} stops: {e!r}"
        if text:
            yield text


GOOD = Matrix(pointer=1 << 20, outer=100, inner=64, stride=72)
BAD = (
    {"pointer": (1 << 20) + 8},
    {"pointer": 0},
    {"stride": 68},
    {"stride": 56},
    {"stride": 1 << 40},
    {"inner": 0},
    {"outer": 0},
)


def refuses() -> str | None:
    """What a tensor map cannot describe is refused by name."""
    for changes in BAD:
        try:
            tensor_map.check("a", Matrix(**vars(GOOD) | changes), BF16.bytes)
        except ArgumentError:
            continue
        return f"a matrix with {changes} is accepted"
    return None


class Driver:
    """A driver that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        structs = ("CUstream", "CUlaunchConfig", "CUlaunchAttribute")
        if name.startswith("CU") and name not in structs:
            return _Names(name)
        return {
            "cuuint64_t": int,
            "cuuint32_t": int,
            "CUstream": int,
            "CUlaunchConfig": SimpleNamespace,
            "CUlaunchAttribute": lambda: SimpleNamespace(value=SimpleNamespace()),
            "cuTensorMapEncodeTiled": self._encode,
        }[name]

    def _encode(self, *args: Any) -> tuple[str, Any]:
        self.asked.append(args)
        return "CUresult.CUDA_SUCCESS", SimpleNamespace(getPtr=lambda: 0)


class _Names:
    """An enumeration whose values are their names."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> str:
        return f"{self._name}.{name}"


def _faked() -> Driver:
    fake = Driver()
    for module in (launch.driver, tensor_map):
        module.driver = lambda: fake  # type: ignore[attr-defined]
    launch.driver.use = lambda device: None  # type: ignore[attr-defined]
    launch.driver.sm_count = lambda device: 4  # type: ignore[assignment]
    return fake


def encodes() -> str | None:
    """Dimensions in elements, strides in bytes, out-of-bounds fill with zeros."""
    fake = _faked()
    kernel = lower(PROBLEM, Config())
    tensor_map.encode(tensor_map.describe(kernel, kernel.map("map_a"), GOOD))
    _, rank, address, dims, strides, box, steps, leave, swizzle, _, fill = fake.asked[0]
    wanted = (2, 1 << 20, [64, 100], [144], [64, 128], [1, 1])
    if (rank, address, dims, strides, box, steps) != wanted:
        return f"the driver is asked for {(rank, address, dims, strides, box, steps)}"
    names = [x.rpartition("_")[2] for x in (leave, swizzle, fill)]
    return None if names == ["NONE", "128B", "NONE"] else f"the driver is asked for {names}"


def launches() -> str | None:
    """A launch goes to the stream it was given, with the arguments in the signature's order, and overlaps
    none."""
    _faked()
    kernel = lower(PROBLEM, Config())
    loaded = object.__new__(launch.LoadedKernel)
    loaded.kernel, loaded.device, loaded._report = kernel, 0, None
    values = {"shape_m": 100, "shape_n": 64, "shape_k": 64, "d": 1 << 20, "d_stride": 72}
    plan = loaded._prepare((100, 64, 64), dict.fromkeys("abd", GOOD), values, 77, 4)
    if plan.config.hStream != 77:
        return f"the launch goes to stream {plan.config.hStream}"
    if plan.config.sharedMemBytes != kernel.smem_bytes or plan.config.gridDimX != 1:
        return "the launch has another grid or shared memory"
    if plan.config.numAttrs:
        return f"the launch has the attributes {plan.config.attrs}"
    scalars = [ctypes.cast(p, ctypes.POINTER(ctypes.c_int32))[0] for p in plan.keep[2][3:]]
    return None if scalars == [values[p.name] for p in kernel.params] else f"scalars {scalars}"
