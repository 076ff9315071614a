"""What a launch needs of a kernel: its tables as far as the host reads them, and none of its statements.

A record is what is left of a lowered kernel once it is compiled. It goes to JSON and comes back strictly: each
field of the type that its class gives it, nothing missing, nothing more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import CacheError
from ..ir.arrivals import Arrivals
from ..ir.counts import INT_LIMIT
from ..ir.dtypes import DTYPES, DType
from ..ir.nodes import Kernel
from ..ir.pointed import Pointed
from ..ir.resources import Groups, Param, TmaMap
from ..ir.tiles import Block, Cluster
from ..ir.walks import Peers, Workspace


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """Of a kernel's `Smem`, what a tensor map has to say. swizzle: bytes, 0 for none."""

    name: str
    dtype: DType
    swizzle: int


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """A `Launchable` without statements. buffers: those that `maps` fill or empty, and D's. A watched kernel has
    none: its report names roles and barriers; nor has a stamped one, whose stamps stand for statements."""

    name: str
    block: Block
    cluster: Cluster
    shares: int
    slices: int
    groups: Groups
    maps: tuple[TmaMap, ...]
    params: tuple[Param, ...]
    buffers: tuple[Buffer, ...]
    threads: int
    smem_bytes: int
    workspace: Workspace
    peers: Peers
    arrivals: Arrivals
    pdl: bool
    pointed: tuple[Pointed, ...]
    per_sm: int

    def __post_init__(self) -> None:
        b = self.block
        sides = (b.m, b.n, b.k, b.fold, b.fold_rows, self.cluster.size)
        for value in (*sides, self.threads, self.smem_bytes, self.per_sm, self.shares, self.slices):
            if not 0 < value < INT_LIMIT:
                raise CacheError(f"{value} is no size of a launch")
        known = {b.name for b in self.buffers}
        for m in self.maps:
            if m.smem not in known or m.box is None or m.clip < 1:
                raise CacheError(f"tensor map {m.name} is incomplete")
            if min(m.heads.numbers) < 0 or not m.heads.side:
                raise CacheError(f"heads of {m.heads} are none")

    @property
    def watchdog(self) -> bool:
        return False

    @property
    def stamps(self) -> int:
        return 0

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    def map(self, name: str) -> TmaMap:
        return next(m for m in self.maps if m.name == name)


def record_of(kernel: Kernel) -> LaunchRecord:
    """Of a lowered kernel. Raises CacheError for a watched or a stamped one."""
    if kernel.watchdog:
        raise CacheError(f"{kernel.name} is watched: its report needs the kernel itself")
    if kernel.stamps:
        raise CacheError(f"{kernel.name} is stamped: its stamps need the kernel itself")
    used = dict.fromkeys(("smem_d", *(m.smem for m in kernel.maps)))
    buffers = (kernel.buffer(name) for name in used)
    return LaunchRecord(
        name=kernel.name,
        block=kernel.block,
        cluster=kernel.cluster,
        shares=kernel.shares,
        slices=kernel.slices,
        groups=kernel.groups,
        maps=kernel.maps,
        params=kernel.params,
        buffers=tuple(Buffer(name=b.name, dtype=b.dtype, swizzle=b.swizzle or 0) for b in buffers),
        threads=kernel.threads,
        smem_bytes=kernel.smem_bytes or 0,
        workspace=kernel.workspace,
        peers=kernel.peers,
        arrivals=kernel.arrivals,
        pdl=kernel.pdl,
        pointed=kernel.pointed,
        per_sm=kernel.per_sm,
    )


def to_json(record: LaunchRecord) -> dict[str, Any]:
    """A JSON object; dtypes by name."""
    found = asdict(record)
    for of in ("buffers", "pointed"):
        for x, written in zip(getattr(record, of), found[of], strict=True):
            written["dtype"] = x.dtype.name
    if record.peers.wire:
        found["peers"]["wire"] = record.peers.wire.name
    return found


def from_json(data: object) -> LaunchRecord:
    """The inverse of `to_json`, of what JSON has made of it. Raises CacheError."""
    found: LaunchRecord = _made(LaunchRecord, data)
    return found


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _made(kind: Any, data: Any) -> Any:
    """A value of type `kind`. Raises CacheError unless `data` spells one."""
    if kind is DType and isinstance(data, str) and data in DTYPES:
        return DTYPES[data]
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(data, dict):
        hints = _hints(kind)
        if {*data} == {f.name for f in fields(kind)}:
            return kind(**{name: _made(hints[name], x) for name, x in data.items()})
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(data, list):
        kinds = args[:1] * len(data) if args[-1] is ... else args
        if len(kinds) == len(data):
            return tuple(_made(k, x) for k, x in zip(kinds, data, strict=True))
    if origin is Literal and isinstance(data, str) and data in args:
        return data
    if origin in (Union, UnionType):
        some = next(k for k in args if k is not type(None))
        return None if data is None else _made(some, data)
    if kind in (str, int, bool) and type(data) is kind:
        return data
    raise CacheError("launch is not of this format")
