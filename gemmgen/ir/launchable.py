"""A kernel as the host sees it: its tables without its statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .dtypes import DType
from .resources import Block, Cluster, Param, TmaMap


class HostBuffer(Protocol):
    """A buffer in shared memory, as a tensor map sees it. swizzle: bytes."""

    @property
    def dtype(self) -> DType: ...
    @property
    def swizzle(self) -> int | None: ...


class Launchable(Protocol):
    """What the host reads of a kernel to launch it and to judge what it did: of a lowered
    `Kernel`, or of what is kept of one."""

    @property
    def name(self) -> str: ...
    @property
    def block(self) -> Block: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def maps(self) -> Sequence[TmaMap]: ...
    @property
    def params(self) -> Sequence[Param]: ...
    @property
    def threads(self) -> int: ...
    @property
    def smem_bytes(self) -> int | None: ...
    @property
    def pdl(self) -> bool: ...
    @property
    def watchdog(self) -> bool: ...
    def buffer(self, name: str) -> HostBuffer: ...
    def map(self, name: str) -> TmaMap: ...
