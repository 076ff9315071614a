"""What other GPUs add to a launch's price: bytes on the link, and what of their time nothing hides."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .config import Config
from .cost_fit import FIT
from .cost_launch import Workload, scale_bytes
from .cost_terms import Link, Terms
from .ir.collectives import ALL_GATHER, COLLECTIVES, PARCELS, chunks_for
from .ir.dtypes import F32


@dataclass(frozen=True, kw_only=True)
class Sending:
    """How sums leave for other ranks. order: of the norm as which the link's time and the loops beside it overlap. held:
    of the tensor cores' time in those loops, the share that hides nothing, since warps multiply or send."""

    order: float
    held: float

    def shown(self, link: float, loops: float, tensor: float) -> float:
        """Seconds of the link's that nothing hides."""
        beside = max(0.0, loops - self.held * tensor)
        if not beside:
            return link
        norm: float = (link**self.order + beside**self.order) ** (1 / self.order)
        return norm - beside


# Of two H100s, BF16, tests/data/reduce_scatter.csv, 60 times of 30 configs at 5 shapes.
STORES = "stores"  # by the warps that multiply, 16 bytes a thread
IN_TURNS = "stores in turns"  # the same, where another warpgroup multiplies meanwhile
SENDING = {
    STORES: Sending(order=2.5, held=0.8),
    IN_TURNS: Sending(order=2.5, held=0.2),
}
# Of two H100s, BF16, tests/data/all_gather.csv: seconds until a copy's bytes flow, its flag and the wait for it among them.
COPY_BEGINS = 16e-6
# Of two H100s, seconds from when a tile's sums are stored until they are added: a flag 5 us in the median, the wait for one that is there 1.3, adding 1.5
# (docs/adr/0049-reduce-scatter.md).
EXCHANGED = 7.8e-6
# Of a tile's time, what a launch of several waves loses as CTAs and ranks fall out of step.
STEP = 0.42


def sent_as(c: Config) -> str:
    """A key of SENDING."""
    return IN_TURNS if c.turns > 1 else STORES


def with_ranks(of: Workload, c: Config, t: Terms) -> Terms:
    """`t`, and what other ranks add. Nothing for a launch of one, or a GPU whose link is not known."""
    if of.ranks == 1 or of.target.link_bytes_per_second is None:
        return t
    if of.problem.collective == ALL_GATHER:
        return replace(t, link=gathered(of, t))
    if COLLECTIVES[of.problem.collective].whole:
        return replace(t, link=reduced(of, t))
    link = parcelled(of, t) if c.outbox else scattered(of, t, SENDING[sent_as(c)])
    return replace(t, link=link)


def sent_bytes(of: Workload) -> float:
    """That each rank sends to all others."""
    (m, n, k), p = of.shape, of.problem
    if p.collective == ALL_GATHER:
        own = m * k * p.a.bytes + scale_bytes(p, m, k)
    else:
        own = m * n * (p.wire or F32).bytes
    return (of.ranks - 1) * own


def _link(of: Workload) -> tuple[float, float]:
    """Bytes, and their seconds. On a host whose GPUs are joined by switches each has its whole link for what it sends."""
    size, rate = sent_bytes(of), of.target.link_bytes_per_second
    assert rate is not None
    return size, size / rate


def scattered(of: Workload, t: Terms, by: Sending) -> Link:
    """Of R ranks each sends R - 1 of R tiles, and multiplies the next one beside each. A CTA's last tile has none."""
    size, seconds = _link(of)
    share = min(1 - 1 / of.ranks, 1 - 1 / t.waves)
    tensor = t.waves * t.work.tensor / t.clock_hz
    tile = t.full.total / t.clock_hz
    return Link(
        bytes=size,
        seconds=seconds,
        shown=by.shown(seconds, share * t.sm, share * tensor),
        beside=STEP * tile if t.waves > 1 else EXCHANGED,
    )


def parcelled(of: Workload, t: Terms) -> Link:
    """The same by a copy engine: a parcel leaves when the tile after its last one is multiplied, for then its warps say so, and behind the one before. Of
    tests/data/outbox.csv, 26 times of two H100s: rms 7.6 %, most where the GPUs are at their power limit."""
    size, seconds = _link(of)
    tile = t.full.total / t.clock_hz
    parts, multiplied, now = (of.ranks - 1) * PARCELS, t.alone - t.launch, 0.0
    for part in range(1, parts + 1):
        there = min(t.alone, t.launch + multiplied * part / (of.ranks * PARCELS) + tile)
        now = max(now, there) + COPY_BEGINS + seconds / parts
    return Link(
        bytes=size,
        seconds=seconds,
        shown=max(0.0, now - t.alone),
        beside=EXCHANGED,
    )


def reduced(of: Workload, t: Terms) -> Link:
    """Each sends every tile to all others, and waits for theirs before it multiplies the next: nothing is hidden. Not fitted to times."""
    size, seconds = _link(of)
    return Link(bytes=size, seconds=seconds, shown=seconds, beside=EXCHANGED * t.waves)


def gathered(of: Workload, t: Terms) -> Link:
    """Own rows first, which are copied before, then those of the ranks behind, in chunks, each multiplied when it is there."""
    (m, _, k), target = of.shape, of.target
    size, seconds = _link(of)
    own = 2 * size / (of.ranks - 1) / (target.hbm_bytes_per_second * FIT.hbm_rate)
    chunks = chunks_for(m * k * of.problem.a.bytes)
    parts = (of.ranks - 1) * chunks
    multiplied = (t.alone - t.launch) / of.ranks
    now = COPY_BEGINS + own + t.launch + multiplied
    for part in range(1, parts + 1):
        there = part * (COPY_BEGINS + seconds / parts)
        now = max(now, there) + multiplied / chunks
    shown = now - COPY_BEGINS - own - t.alone
    return Link(bytes=size, seconds=seconds, shown=max(0.0, shown), beside=COPY_BEGINS + own)
