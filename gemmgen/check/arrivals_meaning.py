"""What the statements that wait for other ranks' rows of A mean, and what brings those: see meaning.py.

On each rank two agents of each launch are no threads of it. One copies the rank's own rows before the launch begins. The other sends
them to all other ranks, chunk by chunk, each followed by its flag, beside the launch: it begins when the launch before is over, and a
launch is over when it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..ir import nodes as ir
from . import ops
from .instance import Post
from .ops import BEGIN, END, EPOCHS, LAUNCH, OWN, Agent, Instance, Op
from .ranks_meaning import await_sums, phase_of

if TYPE_CHECKING:
    from .meaning import Walk

COPY = ir.Copy(dst="rows", src="rows")  # what stands for a copy in a trace


def await_signals(w: Walk, s: ir.AwaitSignals) -> None:
    (await_rows if s.of == "rows" else await_sums)(w, s)


def await_rows(w: Walk, s: ir.AwaitSignals) -> None:
    assert w.post is not None
    number = flag(w.instance, w.post)
    w.add(ops.Wait, s, bar=(EPOCHS, w.agent.rank, number), phase=phase_of(w))
    w.arrived = number + 1


def awaited(w: Walk) -> bool:
    return w.post is not None and flag(w.instance, w.post) >= w.arrived


def flag(i: Instance, post: Post) -> int:
    """The number of its last rows'; negative of the rank's own."""
    return post.place * i.chunks + i.chunks_of(post.number)[-1]


def source(w: Walk, tensor_map: str) -> ops.Source | None:
    """What a load of a tile's rows reads."""
    if w.post is None or w.kernel.map(tensor_map).tensor not in w.kernel.arrivals.tensors:
        return None
    i, launch, owner = w.instance, w.agent.launch, w.post.owner
    base = w.row_cells
    cells = (
        base + _cell(w.kernel, i, w.agent.rank, launch, owner, chunk)
        for chunk in i.chunks_of(w.post.number)
    )
    return ops.Source(cells=tuple(cells), rows=_rows(i, launch, owner))


def names(kernel: ir.Kernel, i: Instance) -> Iterator[str]:
    """Of the cells of all ranks' buffers of rows."""
    for rank in range(i.ranks if i.chunks else 0):
        for buffer in range(kernel.arrivals.buffers):
            for owner in range(i.ranks):
                for chunk in range(i.chunks):
                    yield f"chunk {chunk} of rank {owner}'s rows in buffer {buffer} of rank {rank}"


def copies(kernel: ir.Kernel, i: Instance, cta: int, base: int) -> Iterator[tuple[Agent, list[Op]]]:
    """The agents that copy, of all ranks and launches, numbered from CTA `cta` on. base: the first cell of rows."""
    every = [(launch, rank) for launch in range(len(i.epochs)) for rank in range(i.ranks)]
    for launch, rank in every * bool(i.chunks):
        for role, todo in (("own rows", _own), ("copies", _pushes)):
            agent = Agent(
                cta=cta,
                role=role,
                warpgroup=0,
                warps=(0,),
                rank=rank,
                launch=launch,
                of_ranks=True,
            )
            begin: list[Op] = []
            if launch:
                begin.append(ops.Wait(stmt=BEGIN, bar=(LAUNCH, rank, launch - 1), phase=0))
            end: list[Op] = []
            if launch + 1 < len(i.epochs):
                end.append(ops.Arrive(stmt=END, bars=((LAUNCH, rank, launch),), count=1))
            mine = [*begin, *todo(kernel, i, rank, launch, base), *end]
            yield agent, mine
            cta += 1


def _own(kernel: ir.Kernel, i: Instance, rank: int, launch: int, base: int) -> Iterator[Op]:
    """A launch sees what was copied before it on its stream, through whichever proxy."""
    cells = (base + _cell(kernel, i, rank, launch, rank, chunk) for chunk in range(i.chunks))
    yield ops.Write(stmt=COPY, cells=tuple(cells), tile=_rows(i, launch, rank), single=True)
    yield ops.ProxyFence(stmt=BEGIN, single=True)
    yield ops.Arrive(stmt=BEGIN, bars=((OWN, rank, launch),), count=1, single=True)


def _pushes(kernel: ir.Kernel, i: Instance, rank: int, launch: int, base: int) -> Iterator[Op]:
    """To the rank that needs them next first: that for which this one is the rank behind it."""
    for place in range(i.ranks - 1):
        to = (rank - 1 - place) % i.ranks
        for chunk in range(i.chunks):
            cell = base + _cell(kernel, i, to, launch, rank, chunk)
            yield ops.Write(stmt=COPY, cells=(cell,), tile=_rows(i, launch, rank), single=True)
            bar = (EPOCHS, to, place * i.chunks + chunk)
            yield ops.Arrive(stmt=COPY, bars=(bar,), count=1, single=True)


def _rows(i: Instance, launch: int, owner: int) -> int:
    """One number for a rank's rows of a launch."""
    return launch * i.ranks + owner


def _cell(kernel: ir.Kernel, i: Instance, rank: int, launch: int, owner: int, chunk: int) -> int:
    """Of a chunk of the owner's rows, among those of the buffers of all ranks."""
    buffer = rank * kernel.arrivals.buffers + i.epochs[launch] % kernel.arrivals.buffers
    return (buffer * i.ranks + owner) * i.chunks + chunk
