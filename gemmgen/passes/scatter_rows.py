"""Where several GPUs add their sums up, send those of the others' rows to them, and finish the own ones."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.collectives import COLLECTIVES, MOST_CHUNKS, REDUCE_SCATTER
from ..ir.dtypes import S32
from ..ir.exchange import PARTIALS
from ..ir.mailboxes import OWED, PARCEL_TILES, RANK_TILES, word
from ..ir.nodes import (
    AddPartials,
    AwaitSignals,
    Epoch,
    ForTiles,
    If,
    Kernel,
    Param,
    Registers,
    Role,
    SendPartials,
    Signal,
    Stmt,
    Sync,
    TileBody,
    Zero,
)
from ..ir.rewrite import map_body, map_role, walk
from ..target import Target
from .split_k import waves
from .stream_k import IN_FLIGHT

RANKS_ALONE = Rule(
    id="ranks-alone",
    says="reduce_scatter and all_reduce need CTAs that sum all of a tile's K: split_k 1",
    because="One CTA sends a rank's sum of a tile to each rank that stores it. Parts of that sum would first have to meet.",
)
RANKS_OVERLAP = Rule(
    id="ranks-overlap",
    says="a collective needs launches that follow each other: pdl false",
    because="A launch writes where other ranks read two launches ago. That they are done with it is known from the launch in "
    "between, which must be over.",
)
OUTBOX_SUMS = Rule(
    id="outbox-sums",
    says=f"outbox needs sums that travel: a problem whose collective is {REDUCE_SCATTER}",
    because="What lies in an outbox are sums of other ranks' rows, which the copy engine sends there.",
)
RULES = (RANKS_ALONE, RANKS_OVERLAP, OUTBOX_SUMS)
OWES = "owed"
SCHEDULER = COLLECTIVES[REDUCE_SCATTER].scheduler
# Where the consumers wait for the first stage, so that the host knows no number.
PASSING = If(when="cta_leader", body=(Epoch(by="passing"),))


def scatter_rows(kernel: Kernel, target: Target, outbox: bool) -> Kernel:
    """Of a kernel that walks other ranks' rows: let each CTA send the sum of a tile in those to the rank that has them, and
    say so when the next tile's K blocks are summed, for until then the sum travels. Of a tile in the own rows it waits for the sums
    of all others, adds them in order of ranks, from the one after its own on, and goes on to the epilogue. Which launch it is it reads
    before the CTA's threads meet, and when they have, one of them says so. Sets slot and flags of
    Kernel.peers; inserts what sends, says, waits, adds and numbers, a register for that, and the parameters that lead to the ranks'
    memories.

    With `outbox` sums go to this GPU's own memory, which the host says in the table of all ranks': a copy engine sends them, parcels of
    several tiles. A warp counts itself in a tile's parcel rather than raise a flag, and owners wait for parcels. Sets Kernel.peers.parcels,
    too, and adds the parameters that say what a parcel is."""
    if kernel.scheduler.name != SCHEDULER:
        if outbox:
            values = {"outbox": outbox, "scheduler": kernel.scheduler.name}
            raise IllegalConfig(OUTBOX_SUMS, values, "Use outbox=false.")
        return kernel
    kernel, sums, ahead = with_mailboxes(kernel, target)
    if outbox:
        sizes = (Param(name=name, ctype="int") for name in (PARCEL_TILES, RANK_TILES))
        peers = replace(kernel.peers, parcels=MOST_CHUNKS)
        kernel = replace(kernel, peers=peers, params=(*kernel.params, *sizes))
    return map_role(kernel, "consumer", lambda r: _handing_over(r, sums, ahead, outbox))


def with_mailboxes(kernel: Kernel, target: Target) -> tuple[Kernel, dict[str, int], int]:
    """With slots and flags of each tile, the parameters that lead to them, and a prologue that reads which launch it is. Besides, the wave of each accumulator,
    and of how many ranks to load sums at once. Raises IllegalConfig."""
    if kernel.cluster.k > 1:
        raise IllegalConfig(RANKS_ALONE, {"split_k": kernel.cluster.k}, "Use split_k=1.")
    sums = waves(kernel)
    acc = next(r for r in kernel.consumer.locals if r.name in sums)
    threads, warps = target.warpgroup * kernel.consumers, target.warpgroup // target.warp
    words = acc.count // kernel.peers.per_word
    kernel = replace(
        kernel,
        peers=replace(
            kernel.peers, slot=len(sums) * words * threads, flags=kernel.consumers * warps
        ),
        prologue=_numbered(kernel.prologue),
        params=(*kernel.params, *_params(word(kernel, acc.name))),
    )
    return kernel, sums, max(1, IN_FLIGHT // acc.count)


def _params(word: str) -> tuple[Param, ...]:
    """The ranks' memories, flags of a sender, and 32-bit words of a buffer of slots."""
    return (
        Param(name=PARTIALS, ctype=f"{word}* const*"),
        Param(name="flag_stride", ctype="int"),
        Param(name="slots_stride", ctype="long long"),
    )


def _numbered(prologue: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Every thread has read the epoch when the threads of its CTA have met."""
    meets = any(isinstance(s, Sync) and s.of in ("cta", "cluster") for s in walk(prologue))
    return (Epoch(by="reading"), *prologue, *(Sync(of="cta"),) * (not meets))


def _handing_over(role: Role, sums: dict[str, int], ahead: int, outbox: bool) -> Role:
    send = tuple(SendPartials(src=a, wave=w, through="ranks") for a, w in sums.items())
    add = tuple(AddPartials(dst=a, wave=w, through="ranks", unroll=ahead) for a, w in sums.items())

    noted = Signal(by="noting", owed=OWES)
    said = Signal(by="counting" if outbox else "raising", owed=OWES)
    raised = If(when="owes", ahead=OWES, body=(said,))
    there = AwaitSignals(of="parcels" if outbox else "sums")

    def visit(s: Stmt) -> Stmt | tuple[Stmt, ...]:
        match s:
            case TileBody():
                theirs = If(when="theirs", body=(*send, noted))
                ours = If(when="ours", body=(there, *add, *s.epilogue))
                return replace(s, epilogue=(raised, theirs, ours))
            case ForTiles():
                return s, raised
        return s

    owed = Registers(name=OWES, dtype=S32, count=OWED)
    body = (PASSING, Zero(dst=OWES), *map_body(role.body, visit))
    return replace(role, locals=(*role.locals, owed), body=body)
