"""A cast, a routing, or another kernel without tensor maps, on one device, ready to be launched."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol

from ..ir.resources import Param
from . import driver, sms
from .cache import cached_cubin
from .launch import Scalar, packed
from .nvrtc import Cubin


class Plain(Protocol):
    """A kernel that pointers and sizes are all the arguments of, and whose CTAs are all alike: `gemmgen.casts.Cast`,
    `gemmgen.combining.Combination`. One of clusters says so itself (`__cluster_dims__`), and is launched with whole ones.

    name: the kernel's. threads: of a CTA. ctas_per_sm: that a launch has at most. params: in the kernel's order.
    """

    @property
    def name(self) -> str: ...

    @property
    def threads(self) -> int: ...

    @property
    def ctas_per_sm(self) -> int: ...

    @property
    def params(self) -> tuple[Param, ...]: ...


class LoadedCast:
    """A cast's cubin on CUDA device `device`. Thread-safe: it is immutable."""

    def __init__(self, cast: Plain, cubin: Cubin, device: int) -> None:
        """Raises RuntimeUnavailable without a driver or on a GPU that is not Hopper."""
        driver.require_hopper(device)
        self.cast = cast
        self.device = device
        with driver.current(device):
            self._module = driver.call("cuModuleLoadData", cubin.image)
            self._function = driver.call("cuModuleGetFunction", self._module, cubin.name.encode())

    def launch(self, values: Mapping[str, Scalar], tiles: int, stream: int) -> None:
        """Start it on `stream` over the arguments `values`, by the kernel's names, which give `tiles` CTAs something
        to do. Raises ArgumentError for a size of 2**31 or more, LaunchError."""
        scalars = [packed(p.ctype, p.name, values) for p in self.cast.params]
        array = (ctypes.c_void_p * len(scalars))(*map(ctypes.addressof, scalars))
        ctas = min(tiles, sms.usable(self.device) * self.cast.ctas_per_sm)
        sides = (ctas, 1, 1, self.cast.threads, 1, 1)
        given = (self._function, *sides, 0, stream, ctypes.addressof(array), 0)
        start = driver.driver().cuLaunchKernel
        if start(*given)[0]:  # as a thread does whose current context is another one's
            with driver.current(self.device):
                driver.result("cuLaunchKernel", start(*given))


@lru_cache(maxsize=512)
def loaded(source: Callable[[Any], str], kernel: Plain, device: int) -> LoadedCast:
    """The kernel, of which `source` gives the text, compiled (or compiled before) and loaded on CUDA device `device`, kept for next time.

    Raises CompileError and RuntimeUnavailable.
    """
    return LoadedCast(kernel, cached_cubin(source(kernel), kernel.name), device)
