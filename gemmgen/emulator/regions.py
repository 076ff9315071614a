"""What bulk copies work on: tensor maps by address, boxes in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import EmulatorError, IllegalAccess, ProtocolError, Race
from .group import Group
from .lanes import agent_of, space_at, who
from .program import Scope
from .races import WORD
from .spaces import PARAM_WINDOW
from .syntax import Address, Operand
from .tensor_map import BYTES, TensorMap, chunks, decode

if TYPE_CHECKING:
    from .machine import Cta

TENSOR_ALIGNMENT = 128  # bytes, of a box in shared memory
ALIGNMENT = 16  # bytes, of a plain bulk copy
CHUNK = 16

Coordinates = Callable[[Group, int], tuple[int, ...]]


def coordinates(operand: Operand, s: Scope) -> Coordinates:
    assert isinstance(operand, Address)
    slots = [s.src(c, "s32") for c in operand.coords]
    return lambda g, lane: tuple(int(g.R[x][lane]) for x in slots)


def tensor_map_at(g: Group, address: int, lane: int) -> TensorMap:
    """The tensor map at a generic address."""
    if address % 64:
        raise IllegalAccess(
            f"{who(g, lane)}: the tensor map at {address:#x} is not 64-byte aligned"
        )
    if space_at(address) == "param":
        at = address - PARAM_WINDOW
        raw = g.cta.launch.params[at : at + BYTES]
    else:
        raw = g.cta.launch.memory.load(np.array([address]), BYTES, who(g, lane)).tobytes()
        _check_acquired(g, address, lane)
    try:
        found = decode(raw) if len(raw) == BYTES else None
    except EmulatorError as e:
        raise ProtocolError(f"{who(g, lane)}: {e}") from e
    if found is None:
        raise ProtocolError(f"{who(g, lane)}: there is no tensor map at {address:#x}")
    return found


def _check_acquired(g: Group, address: int, lane: int) -> None:
    """A map written by this launch takes a fence.proxy.tensormap before it is used (PTX ISA, fence)."""
    written = g.cta.launch.memory.last_write(address, who(g, lane))
    key = (agent_of(g, lane), address)
    if written > g.cta.cluster.acquired_maps.get(key, 0):
        raise Race(
            f"{who(g, lane)}: the tensor map at {address:#x} was written in this launch, and no "
            "fence.proxy.tensormap::generic.acquire of its warp followed"
        )


def use_map(g: Group, address: int, lane: int, agent: int, time: int) -> None:
    """A copy reads the map at `address` until it is done: until then nobody may rewrite it."""
    if space_at(address) != "param":
        memory, cluster = g.cta.launch.memory, g.cta.cluster.origin
        memory.use_map(address, cluster, agent, time, who(g, lane))


@dataclass(frozen=True, kw_only=True)
class Region:
    """Where a box lies in one CTA's shared memory: chunks of 16 bytes in the box's order."""

    cta: Cta
    chunks: Any
    start: int
    size: int

    @property
    def words(self) -> Any:
        """Of the race detector: a slice where they lie together, which is cheaper."""
        low = int(self.chunks.min()) * CHUNK
        if int(self.chunks.max()) * CHUNK + CHUNK - low == self.size:
            return slice(low // WORD, (low + self.size) // WORD)
        return (self.chunks[:, None] * (CHUNK // WORD) + np.arange(CHUNK // WORD)).reshape(-1)

    def put(self, data: Any) -> None:
        shared = self.cta.shared
        shared.data.reshape(-1, CHUNK)[self.chunks] = data.reshape(-1, CHUNK)
        shared.known.reshape(-1, CHUNK)[self.chunks] = True

    def poison(self) -> None:
        """What a load in flight leaves there is anybody's guess."""
        shared = self.cta.shared
        shared.data.reshape(-1, CHUNK)[self.chunks] = 0xFF
        shared.known.reshape(-1, CHUNK)[self.chunks] = False

    def get(self) -> tuple[Any, Any]:
        """Bytes in the box's order, and which of them have a value."""
        shared = self.cta.shared
        data = shared.data.reshape(-1, CHUNK)[self.chunks]
        return data.reshape(-1), shared.known.reshape(-1, CHUNK)[self.chunks].reshape(-1)


def region(
    g: Group, lane: int, cta: Cta, at: int, size: int, swizzle: int, alignment: int
) -> Region:
    if at % alignment or size % CHUNK or size == 0:
        raise ProtocolError(
            f"{who(g, lane)}: shared address {at:#x}, {size} bytes: must be a multiple of {alignment}, "
            f"in multiples of {CHUNK} bytes"
        )
    cta.shared.check(at, at + size, who(g, lane))
    where = chunks(at, size, swizzle)
    cta.shared.check(int(where.min()) * CHUNK, int(where.max()) * CHUNK + CHUNK, who(g, lane))
    return Region(cta=cta, chunks=where, start=at, size=size)
