"""The memory in which sums for other ranks wait for this GPU's copy engine, and what that does (docs/adr/0058-outbox.md).

An outbox is laid out as a mailbox is: what is for a rank lies where this one's sums lie in the mailbox there. So a kernel finds it by
the table of all ranks' addresses, in which that of each other rank is the outbox's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..ir.collectives import PARCELS, Seat
from ..ir.launchable import Launchable
from ..ir.mailboxes import PARCEL_FLAGS, PARCEL_TILES, RANK_TILES
from .inbox import Move, Raise
from .peers import FLAG, WORD, Mailbox, tiles_of


@dataclass(frozen=True, kw_only=True)
class Await:
    """What comes after begins when the flag is the epoch, or a later one."""

    flag: int


@dataclass(frozen=True, kw_only=True)
class Parcels:
    """What a launch sends to each other rank: `tiles` slots of so many bytes, so many of them in a parcel."""

    ranks: int
    tiles: int
    slot: int
    each: int

    def values(self) -> dict[str, int]:
        """The kernel's parameters."""
        return {PARCEL_TILES: self.each, RANK_TILES: self.tiles}

    def pushes(
        self, box: Mailbox, bases: Sequence[int], outbox: int, rank: int, epoch: int
    ) -> Iterator[Await | Move | Raise]:
        """To all others, in the order in which a launch computes their tiles: each parcel when it is there, and its flag behind it.
        bases: where each rank's mailbox begins."""
        seat = Seat(rank=rank, ranks=self.ranks)
        for phase in range(self.ranks - 1):
            to, place = bases[seat.owner(phase)], self.ranks - 2 - phase
            slots = box.buffer(epoch) + place * self.tiles * self.slot
            for parcel, first in enumerate(range(0, self.tiles, self.each)):
                flag = FLAG * ((place + 1) * box.flags - PARCEL_FLAGS + parcel)
                at = slots + first * self.slot
                size = min(self.each, self.tiles - first) * self.slot
                yield Await(flag=outbox + flag)
                yield Move(
                    to=to + at, to_pitch=size, of=outbox + at, of_pitch=size, width=size, height=1
                )
                yield Raise(flag=to + flag)


def parcels(
    kernel: Launchable, shape: tuple[int, int, int], ranks: int, count: int = PARCELS
) -> Parcels:
    """count: in how many a rank's are sent, as far as there are tiles."""
    tiles, slot = tiles_of(kernel, shape), WORD * kernel.peers.slot
    return Parcels(ranks=ranks, tiles=tiles, slot=slot, each=-(-tiles // min(count, tiles)))
