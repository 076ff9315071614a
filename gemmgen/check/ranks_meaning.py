"""What the statements by which GPUs add their sums up mean, and how launches of one follow each other: see meaning.py.

A flag is a barrier whose phases are the launches on the rank that raises it. So is what numbers a rank's launches: each of its CTAs arrives
there once. Launches on a rank follow each other: the last operations of one are before the first of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..ir import nodes as ir
from . import ops, parcels_meaning
from .instance import Instance, Post
from .one_lane import one_lane
from .ops import BEGIN, END, EPOCHS, LAUNCH, OWN, PASSED, Bar

if TYPE_CHECKING:
    from .meaning import Walk


def started(w: Walk) -> None:
    """A launch begins when the one before it is over, and its rank's own rows of A are copied."""
    if w.agent.launch:
        w.add(ops.Wait, BEGIN, bar=(LAUNCH, w.agent.rank, w.agent.launch - 1), phase=0)
    parcels_meaning.started(w)
    if w.instance.chunks:
        w.add(ops.Wait, BEGIN, bar=(OWN, w.agent.rank, w.agent.launch), phase=0)


def ended(w: Walk) -> None:
    if w.agent.launch + 1 < len(w.instance.epochs):
        w.add(ops.Arrive, END, bars=((LAUNCH, w.agent.rank, w.agent.launch),), count=1)


def epoch(w: Walk, s: ir.Epoch) -> None:
    bar = PASSED, w.agent.rank, 0
    if s.by == "reading":
        w.add(ops.Number, s, bar=bar)
    else:
        w.add(ops.Arrive, s, bars=(bar,), count=w.warps)


def signal(w: Walk, s: ir.Signal) -> None:
    if s.by == "telling":
        tell(w, s)
        return
    if s.by == "noting":
        assert w.post is not None
        w.owed = w.post
        return
    if s.by == "counting":
        parcels_meaning.count(w, s)
        return
    assert w.owed is not None
    w.add(ops.WarpSync, s)
    one_lane(w, s, ops.Arrive, bars=(_flag(w, w.owed, w.owed.place),), count=1)
    w.owed = None


def tell(w: Walk, s: ir.Signal) -> None:
    """Each of the others, to which this rank is so many behind."""
    w.add(ops.WarpSync, s)
    for place in others(w):
        owner = (w.agent.rank - 1 - place) % w.instance.ranks
        bar = _flag(w, replace(_post(w), owner=owner), place)
        one_lane(w, s, ops.Arrive, bars=(bar,), count=1)


def phase_of(w: Walk) -> int:
    """Of a flag, that which is awaited: of the first launch whose epoch is as late as this one's."""
    epochs = w.instance.epochs
    return next(i for i, epoch in enumerate(epochs) if epoch >= epochs[w.agent.launch])


def await_sums(w: Walk, s: ir.AwaitSignals) -> None:
    for place in others(w):
        assert w.post is not None
        of_parcel = s.of == "parcels"
        bar = parcels_meaning.arrived(w, place) if of_parcel else _flag(w, w.post, place)
        one_lane(w, s, ops.Wait, bar=bar, phase=phase_of(w))
    w.add(ops.WarpSync, s)


def send(w: Walk, s: ir.SendPartials) -> None:
    post = _post(w)
    if s.through == "ranks":
        w.add(ops.Write, s, cells=_slot(w, s, post, post.place))
        return
    for back in reversed(range(w.instance.ranks)):
        owner = (w.agent.rank - back) % w.instance.ranks
        w.add(ops.Write, s, cells=_slot(w, s, replace(post, owner=owner), back))


def add(w: Walk, s: ir.AddPartials) -> None:
    ranks = w.instance.ranks
    places = (
        others(w) if s.through == "ranks" else [(x - w.agent.rank) % ranks for x in range(ranks)]
    )
    for place in places:
        w.add(ops.Read, s, cells=_slot(w, s, _post(w), place))


def _post(w: Walk) -> Post:
    """The running tile; of a launch that knows no ranks, rank 0's."""
    if w.post is None:
        return Post(tile=w.tile, owner=0, place=-1, number=w.tile)
    return w.post


def others(w: Walk) -> range:
    return range(w.instance.ranks - 1)


def _flag(w: Walk, post: Post, place: int) -> Bar:
    """This warp's of a tile, with its owner. Warps that walk together have one."""
    tile = place * w.instance.tiles + post.number
    warp = w.agent.share * 4 + w.agent.warps[0]
    inside = w.agent.cta % w.kernel.cluster.size
    number = (tile * w.kernel.cluster.size + inside) * w.kernel.peers.flags + warp
    return EPOCHS, post.owner, number


def slots_of(kernel: ir.Kernel, i: Instance) -> int:
    """Those of all ranks' mailboxes, each of a cluster's tiles, and of their outboxes."""
    peers = kernel.peers
    each = i.ranks * peers.buffers * peers.senders(i.ranks) * i.tiles * (peers.slot > 0)
    return each * (2 if i.parcels else 1)


def slot_number(
    kernel: ir.Kernel, i: Instance, launch: int, of: tuple[int, bool], place: int, slot: int
) -> int:
    """Of a rank's tiles for the sender `place`, in a launch, behind the cells of all CTAs. of: whose memory it is in, and whether that is an outbox."""
    size, peers, (rank, out) = kernel.cluster.size, kernel.peers, of
    buffer = rank * peers.buffers + i.epochs[launch] % peers.buffers
    ctas = len(i.epochs) * i.ranks * i.ctas * size
    boxes = size * slots_of(kernel, i) // 2 * out
    return ctas + boxes + (buffer * peers.senders(i.ranks) + place) * i.tiles * size + slot


def _slot(w: Walk, s: ir.SendPartials | ir.AddPartials, post: Post, place: int) -> tuple[int, ...]:
    """By owner, buffer, sender, tile and CTA of the cluster; of what copy engines send, the sender's own copy."""
    i, size = w.instance, w.kernel.cluster.size
    of = post.owner, False
    if i.parcels and isinstance(s, ir.SendPartials):
        of = w.agent.rank, True
    slot = post.number * size + w.agent.cta % size
    return w.cells(s, slot_number(w.kernel, i, w.agent.launch, of, place, slot))


RANKS: dict[type[ir.Stmt], Callable[[Walk, Any], None]] = {
    ir.Epoch: epoch,
    ir.Signal: signal,
}
