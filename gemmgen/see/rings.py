"""The rings of a stamped kernel, as templates/stamps.j2 lays them out in memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from ..errors import VerificationError
from ..ir.nodes import Kernel, Role
from ..ir.stamps import HEAD, STAMP, ring_bytes

WORD = 1 << 32


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """at: cycles of the SM's 64-bit clock. tile: the CTA's. tile, k: -1 outside of them."""

    at: int
    event: int
    tile: int
    k: int


@dataclass(frozen=True, kw_only=True)
class Ring:
    """What one warpgroup of one CTA noted. opened, closed: its SM's cycles; in `_ns` nanoseconds, which all SMs
    share. count: stamps that were written. newest: those that are left, in order."""

    cta: int
    warpgroup: int
    opened: int
    opened_ns: int
    closed: int
    closed_ns: int
    count: int
    newest: tuple[Stamp, ...]

    @property
    def lost(self) -> int:
        """The oldest stamps, that newer ones lie over."""
        return self.count - len(self.newest)


def rings(kernel: Kernel, data: bytes) -> tuple[Ring, ...]:
    """By CTA and warpgroup. data: all of them. Raises VerificationError if it is no whole number of CTAs' rings."""
    groups, size = kernel.threads // 128, ring_bytes(kernel.stamps)
    if not data or len(data) % (groups * size):
        raise VerificationError(f"{len(data)} bytes are not {groups} rings of {size} bytes per CTA")
    found = (
        _ring(data[at : at + size], *divmod(number, groups), kernel.stamps)
        for number, at in enumerate(range(0, len(data), size))
    )
    return tuple(_of_cta(kernel.consumer, r) for r in found)


def _of_cta(consumer: Role, r: Ring) -> Ring:
    """Each warpgroup counts the tiles that it has: of those that take them in turns, not all of its CTA's."""
    first, end = consumer.warpgroups
    if consumer.turns == 1 or not first <= r.warpgroup < end:
        return r
    before = r.warpgroup - first
    newest = (
        replace(s, tile=s.tile * consumer.turns + before) if s.tile >= 0 else s for s in r.newest
    )
    return replace(r, newest=tuple(newest))


def _ring(data: bytes, cta: int, warpgroup: int, capacity: int) -> Ring:
    opened, opened_ns, closed, closed_ns, count = struct.unpack_from("<4QI", data)
    end = HEAD + STAMP * min(count, capacity)
    stamps = [*struct.iter_unpack("<2I2i", data[HEAD:end])]
    kept = [stamps[i % capacity] for i in range(max(0, count - capacity), count)]
    return Ring(
        cta=cta,
        warpgroup=warpgroup,
        opened=opened,
        opened_ns=opened_ns,
        closed=closed,
        closed_ns=closed_ns,
        count=count,
        newest=_unwrapped(kept, closed),
    )


def _unwrapped(kept: list[tuple[int, int, int, int]], closed: int) -> tuple[Stamp, ...]:
    """Stamps have the low word of the clock. Backwards from the last, which was read whole: no two neighbours
    are 2**32 cycles, two seconds, apart."""
    found, now = [], closed
    for clock, event, tile, k in reversed(kept):
        now -= (now - clock) % WORD
        found.append(Stamp(at=now, event=event, tile=tile, k=k))
    return tuple(reversed(found))
