"""Global memory: allocations with addresses like a GPU's, and who wrote which byte of them."""

from __future__ import annotations

from bisect import bisect_right
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import IllegalAccess, Race, UninitializedRead
from .flags import Origin, Release, after
from .spaces import HEAP
from .views import View

Bytes = npt.NDArray[np.uint8]

MAP_BYTES = 128
GAP = 1 << 16  # bytes between allocations, so that running off one never lands in the next


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Who writes: an agent of a cluster at a time on its clock; `what` names the instruction."""

    cluster: Origin
    agent: int
    clock: int
    what: str
    atomic: bool = False


@dataclass(frozen=True, kw_only=True)
class MapUse:
    """A copy that reads the tensor map at `offset` of an allocation until `agent` of a cluster is at
    `time`."""

    offset: int
    cluster: Origin
    agent: int
    time: int
    what: str


@dataclass(kw_only=True, eq=False)
class Allocation:
    """`size` bytes from `address` on. `known` is None where every byte has a value. device: the GPU that alone may access it; None:
    any."""

    address: int
    data: Bytes
    known: npt.NDArray[np.bool_] | None
    device: int | None = None
    writers: list[Writer] = field(default_factory=list)
    last: npt.NDArray[np.int32] | None = None  # per byte: index into writers, plus one
    uses: list[MapUse] = field(default_factory=list)

    def claim(self, offsets: Any, by: Writer, seen: View) -> None:
        """Note a write by who has `seen` what. Raises Race if another one of this launch is not
        ordered before it."""
        if self.last is None:
            self.last = np.zeros(self.data.size, np.int32)
        for index in np.unique(self.last[offsets]):
            if index and not _ordered(self.writers[index - 1], by, seen):
                first = np.asarray(offsets).ravel()[(self.last[offsets] == index).ravel()][0]
                raise Race(
                    f"global memory at {self.address + int(first):#x} is written twice, unordered: by "
                    f"{self.writers[index - 1].what} and by {by.what}"
                )
        self._unused(offsets, by, seen)
        self.writers.append(by)
        self.last[offsets] = len(self.writers)

    def _unused(self, offsets: Any, by: Writer, seen: View) -> None:
        """Raise Race if a copy may still read a tensor map there."""
        for use in self.uses:
            hit = ((offsets >= use.offset) & (offsets < use.offset + MAP_BYTES)).any()
            if hit and (use.cluster != by.cluster or not seen.after(use.agent, use.time)):
                raise Race(
                    f"the tensor map at {self.address + use.offset:#x} is rewritten by {by.what} while "
                    f"a copy may still use it: {use.what}"
                )

    def forget(self) -> None:
        """A new launch: what earlier ones wrote is ordered before it."""
        self.writers, self.last, self.uses = [], None, []


def _ordered(earlier: Writer, later: Writer, seen: View) -> bool:
    if earlier.atomic and later.atomic:
        return True
    return after(seen, later.cluster, earlier)


class GlobalMemory:
    """Byte-addressed. Access outside an allocation, or reading bytes without a value, is an error. device: of the GPU that sees it
    so; None: the host, or a GPU by itself."""

    device: int | None = None

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._allocations: list[Allocation] = []
        self._next = HEAP
        self.releases: dict[
            int, Release
        ] = {}  # by address: what a store there has published, until the next

    def seen_by(self, device: int) -> GlobalMemory:
        """The same memory, as one of several GPUs sees it: without what is another's alone."""
        view = copy(self)
        view.device = device
        return view

    def allocate(
        self,
        data: npt.NDArray[Any] | None,
        size: int | None = None,
        *,
        alignment: int = 256,
        device: int | None = None,
    ) -> int:
        """The address of a new allocation: a copy of `data`, or `size` bytes without a value. device: the GPU that alone may
        access it."""
        if data is not None:
            contents = np.ascontiguousarray(data).reshape(-1).view(np.uint8).copy()
        else:
            contents = np.full(size or 0, 0xFF, np.uint8)
        address = -(-self._next // alignment) * alignment
        self._next = address + contents.size + GAP
        self._insert(address, contents, data is not None, device)
        return address

    def map(self, address: int, contents: bytes) -> None:
        """Put an initialised variable at a fixed address; a second time does nothing."""
        if address not in self._starts:
            self._insert(address, np.frombuffer(contents, np.uint8).copy(), True)

    def read(self, address: int, size: int) -> Bytes:
        """A copy of `size` bytes, with a value or not: for the host."""
        a = self.find(address, size, "the host")
        at = address - a.address
        found: Bytes = a.data[at : at + size].copy()
        return found

    def last_write(self, address: int, who: str) -> int:
        """Grows whenever this launch writes the byte at `address`; 0 if it never did."""
        a = self.find(address, 1, who)
        return 0 if a.last is None else int(a.last[address - a.address])

    def use_map(self, address: int, cluster: Origin, agent: int, time: int, what: str) -> None:
        """A copy reads the tensor map at `address` until `agent` is at `time`."""
        a = self.find(address, MAP_BYTES, what)
        at = address - a.address
        a.uses = [u for u in a.uses if (u.offset, u.cluster, u.agent) != (at, cluster, agent)]
        a.uses.append(MapUse(offset=at, cluster=cluster, agent=agent, time=time, what=what))

    def new_launch(self) -> None:
        self.releases.clear()
        for a in self._allocations:
            a.forget()

    def find(self, address: int, size: int, who: str) -> Allocation:
        """The allocation that holds all of [address, address + size)."""
        i = bisect_right(self._starts, address) - 1
        if i >= 0:
            a = self._allocations[i]
            if None not in (a.device, self.device) and a.device != self.device:
                raise IllegalAccess(
                    f"{who}: global address {address:#x} is in memory of GPU {a.device}, to which GPU {self.device} has no access"
                )
            if address + size <= a.address + a.data.size:
                return a
        raise IllegalAccess(
            f"{who}: global address {address:#x}, {size} bytes: no allocation there"
        )

    def load(self, addresses: Any, size: int, who: str) -> Bytes:
        """uint8 [n, size] from n addresses (int64)."""
        if addresses.size == 0:
            return np.zeros((0, size), np.uint8)
        a, at = self._locate(addresses, size, who)
        if a.known is not None and not a.known[at].all():
            bad = int(addresses[np.flatnonzero(~a.known[at].all(1))[0]])
            raise UninitializedRead(f"{who}: global address {bad:#x} was never written")
        found: Bytes = a.data[at]
        return found

    def check_read(
        self,
        addresses: Any,
        size: int,
        cluster: Origin,
        seen: View,
        who: str,
        link: str = "not ordered after",
    ) -> None:
        """Raises Race if a write of this launch is not ordered before a read by somebody of `cluster`. link: what that is not, in
        words."""
        if self.find(int(addresses.min()), 1, who).last is None:
            return
        a, at = self._locate(addresses, size, who)
        assert a.last is not None
        for index in np.unique(a.last[at]):
            if index and not after(seen, cluster, a.writers[index - 1]):
                first = a.address + int(at[a.last[at] == index][0])
                raise Race(
                    f"global memory at {first:#x} is read by {who}, {link} the write by "
                    f"{a.writers[index - 1].what}"
                )

    def store(self, addresses: Any, values: Bytes, by: Writer, seen: View) -> None:
        """Write uint8 [n, size] at n addresses; `seen` is what the writer is ordered after."""
        if addresses.size == 0:
            return
        a, at = self._locate(addresses, values.shape[1], by.what)
        a.claim(at, by, seen)
        for address in addresses if self.releases else ():
            self.releases.pop(int(address), None)
        a.data[at] = values
        if a.known is not None:
            a.known[at] = True

    def _locate(self, addresses: Any, size: int, who: str) -> tuple[Allocation, Any]:
        """One allocation must hold all of it: what one instruction touches belongs to one tensor."""
        low, high = int(addresses.min()), int(addresses.max())
        a = self.find(low, 1, who)
        if high + size > a.address + a.data.size:
            outside = addresses[addresses + size > a.address + a.data.size]
            raise IllegalAccess(
                f"{who}: global address {int(outside[0]):#x}, {size} bytes: past the allocation at "
                f"{a.address:#x} of {a.data.size} bytes"
            )
        return a, (addresses - a.address)[:, None] + np.arange(size)

    def _insert(
        self, address: int, contents: Bytes, known: bool, device: int | None = None
    ) -> None:
        i = bisect_right(self._starts, address)
        self._starts.insert(i, address)
        mask = None if known else np.zeros(contents.size, np.bool_)
        made = Allocation(address=address, data=contents, known=mask, device=device)
        self._allocations.insert(i, made)
