"""What the statements mean by which ranks' sums are sent in parcels, and what sends those: see meaning.py.

On each rank one agent of each launch is no thread of it: it copies parcel after parcel from the outbox to the ranks that have their rows, and
raises each one's flag there. It begins when that of the launch before is over, and is over before the launch after the next begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..ir import nodes as ir
from . import ops
from .instance import Instance
from .one_lane import one_lane
from .ops import BEGIN, END, EPOCHS, PACKED, SENT, Agent, Bar, Op

if TYPE_CHECKING:
    from .meaning import Walk

PUSH = ir.Copy(dst="mailbox", src="outbox")  # what stands for a copy in a trace
PUSHES = "parcels"  # the agents' role
# Of a slot for the other rank `place` in a launch, in whose memory, and whether that is an outbox.
Cells = Callable[[int, tuple[int, bool], int, int], tuple[int, ...]]


def started(w: Walk) -> None:
    """A launch's outbox is that of the one before the last, whose parcels have left."""
    if w.instance.parcels and w.agent.launch > 1:
        w.add(ops.Wait, BEGIN, bar=(SENT, w.agent.rank, w.agent.launch - 2), phase=0)


def count(w: Walk, s: ir.Signal) -> None:
    assert w.owed is not None
    w.add(ops.WarpSync, s)
    bar = PACKED, w.agent.rank, w.owed.place * w.instance.parcels + _of(w, w.owed.number)
    one_lane(w, s, ops.Arrive, bars=(bar,), count=len(w.agent.warps))
    w.owed = None


def arrived(w: Walk, place: int) -> Bar:
    """The flag of the parcel that this CTA's tile is in, from the other rank `place`."""
    assert w.post is not None
    return EPOCHS, w.post.owner, place * w.instance.parcels + _of(w, w.post.number)


def _of(w: Walk, number: int) -> int:
    """The parcel of a tile: the slot of this CTA's, by how many slots a parcel has."""
    size = w.kernel.cluster.size
    return (number * size + w.agent.cta % size) // len(slots(w.instance, size)[0])


def slots(i: Instance, size: int) -> list[range]:
    """Those of each parcel of a rank's rows: a tile has one for each CTA of a cluster."""
    every = i.tiles * size
    each = -(-every // i.parcels)
    return [range(x, min(x + each, every)) for x in range(0, every, each)]


def packed(kernel: ir.Kernel, i: Instance, bar: Bar) -> int:
    """How many warps count themselves in a parcel."""
    return len(slots(i, kernel.cluster.size)[bar[2] % i.parcels]) * kernel.peers.flags


def pushes(
    kernel: ir.Kernel, i: Instance, cta: int, cells: Cells
) -> Iterator[tuple[Agent, list[Op]]]:
    """The agents that send, of all ranks and launches, numbered from CTA `cta` on."""
    every = [(launch, rank) for launch in range(len(i.epochs)) for rank in range(i.ranks)]
    for launch, rank in every * bool(i.parcels):
        agent = Agent(
            cta=cta,
            role=PUSHES,
            warpgroup=0,
            warps=(0,),
            rank=rank,
            launch=launch,
            of_ranks=True,
        )
        yield agent, [*_pushes(kernel, i, rank, launch, cells)]
        cta += 1


def _pushes(kernel: ir.Kernel, i: Instance, rank: int, launch: int, cells: Cells) -> Iterator[Op]:
    """In the order in which the launch computes their tiles."""
    if launch:
        yield ops.Wait(stmt=BEGIN, bar=(SENT, rank, launch - 1), phase=0, single=True)
    for place in reversed(range(i.ranks - 1)):
        owner = (rank - 1 - place) % i.ranks
        for parcel, of in enumerate(slots(i, kernel.cluster.size)):
            number = place * i.parcels + parcel
            yield ops.Wait(stmt=PUSH, bar=(PACKED, rank, number), phase=launch, single=True)
            for slot in of:
                tile = i.tile(launch, rank, owner, slot // kernel.cluster.size)
                taken = cells(launch, (rank, True), place, slot)
                put = cells(launch, (owner, False), place, slot)
                yield ops.Read(stmt=PUSH, cells=taken, tile=tile, single=True)
                yield ops.Write(stmt=PUSH, cells=put, tile=tile, single=True)
            yield ops.Arrive(stmt=PUSH, bars=((EPOCHS, owner, number),), count=1, single=True)
    yield ops.Arrive(stmt=END, bars=((SENT, rank, launch),), count=1, single=True)
