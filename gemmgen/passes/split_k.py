"""Where tiles are few, let the CTAs of a cluster divide a tile's K, and one of them finish it."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.dtypes import S32
from ..ir.nodes import (
    AddPartials,
    Arrive,
    Barrier,
    Cluster,
    ExpectTx,
    Fence,
    ForTiles,
    If,
    InitBarrier,
    Kernel,
    NextTurn,
    Registers,
    Role,
    SendPartials,
    Smem,
    Stmt,
    Sync,
    TakeShare,
    TileBody,
    Wait,
    Zero,
)
from ..ir.rewrite import map_body, map_role, map_stmts, walk
from ..ir.stores import Evaluate, StageTile
from ..target import Target
from .derive_maps import from_k_first
from .take_turns import PING_PONG, alone

SPLIT_MULTICAST = Rule(
    id="split-multicast",
    says="CTAs that divide a tile's K cannot multicast an operand: split_k needs multicast none",
    because="They have the same tile but different K blocks, so none of them loads what another needs.",
)
SPLIT_DEPTHS = Rule(
    id="split-depths",
    says="groups that split K, and windows, cannot be combined with split_k",
    because="A tile has one offset at which its K begins: that of its group, whose K may be 0; and one that no window reaches has no K.",
)
RULES = (SPLIT_MULTICAST, SPLIT_DEPTHS)

FULL, EMPTY = "partials_full", "partials_empty"
SMEM, TURN, MET = "smem_partials", "turn", "met"
VECTOR = 4  # registers that a thread sends at once, 16 bytes


def split_k(kernel: Kernel, target: Target, split_k: int) -> Kernel:
    """Above 1, give each CTA of a cluster a share of every tile's K blocks; then ranks send their
    accumulators to rank 0, which adds them in order of rank and goes on to the epilogue. Sets
    Kernel.cluster, Scheduler.shares, Coord.start and LoadBlockScales.block; inserts what divides and
    exchanges, the cluster's Sync in two halves, the senders' last wait, a buffer and two barriers."""
    if split_k == 1:
        return kernel
    _check(kernel, split_k)
    sums = waves(kernel)

    def visit(s: Stmt) -> Stmt | tuple[Stmt, ...]:
        match s:
            case TileBody():
                return replace(s, setup=(TakeShare(), *s.setup))
            case Fence(of="barriers"):
                return (InitBarrier(barrier=FULL), InitBarrier(barrier=EMPTY), s)
            case Sync(of="cta"):
                # The ring is this CTA's own: the cluster is awaited before the first exchange only.
                return Sync(of="cluster_arrive"), s
        return s

    kernel = replace(
        map_stmts(from_k_first(kernel), visit),
        cluster=Cluster(size=split_k),
        scheduler=replace(kernel.scheduler, shares=True),
        smem=(*kernel.smem, buffer(kernel, sums, split_k - 1)),
        barriers=(
            *kernel.barriers,
            *(Barrier(name=n, stages=1, per="tile") for n in (FULL, EMPTY)),
        ),
    )
    return map_role(kernel, "consumer", lambda r: _exchanging(r, sums))


def _check(kernel: Kernel, split_k: int) -> None:
    if kernel.consumer.turns > 1:
        raise IllegalConfig(PING_PONG, alone(kernel, split_k), "Use ping_pong=false.")
    if kernel.cluster.size > 1:
        values = {"split_k": split_k, "multicast": kernel.cluster.shared}
        raise IllegalConfig(SPLIT_MULTICAST, values, "Use multicast=none, or split_k=1.")
    if kernel.groups.depths or kernel.scheduler.windowed:
        groups = {"split_k": split_k, "scheduler": kernel.scheduler.name}
        raise IllegalConfig(SPLIT_DEPTHS, groups, "Use split_k=1.")


def waves(kernel: Kernel) -> dict[str, int]:
    """The accumulators that the epilogue starts from, with their waves."""
    (consumer,) = (r for r in kernel.roles if r.name == "consumer")
    names = {r.name for r in consumer.locals if not r.transient}
    staged = [s for s in walk(consumer.body) if isinstance(s, StageTile | Evaluate)]
    return {s.src: s.wave for s in staged if s.src in names}


def buffer(kernel: Kernel, waves: dict[str, int], senders: int) -> Smem:
    """A slot per sender: for every four registers a row of all the threads of a warpgroup."""
    (acc, *_) = [r for role in kernel.roles for r in role.locals if r.name in waves]
    return Smem(
        name=SMEM,
        dtype=acc.dtype,
        rows=len(waves) * kernel.consumers * acc.count // VECTOR,
        cols=128 * VECTOR,
        stages=senders,
        use="partials",
        swizzle=0,
    )


def _exchanging(role: Role, waves: dict[str, int]) -> Role:
    """Rank 0's epilogue is that of the whole sum."""
    send = (SendPartials(src=a, smem=SMEM, barrier=FULL, wave=w) for a, w in waves.items())
    add = (AddPartials(dst=a, smem=SMEM, wave=w) for a, w in waves.items())
    emptied = Wait(barrier=EMPTY, per="tile", turn=TURN, flip=1)
    received = (
        If(when="cta_leader", body=(ExpectTx(barrier=FULL, per="tile"),)),
        Wait(barrier=FULL, per="tile", turn=TURN),
        *add,
    )
    # Behind the epilogue, which has stored what was read: ADR 0010.
    released = Arrive(barrier=EMPTY, to="others")
    sends = If(when="sends", body=(emptied, *send))

    def visit(s: Stmt) -> Stmt | tuple[Stmt, ...]:
        match s:
            case TileBody():
                finishes = If(when="finishes", body=(*received, *s.epilogue, released))
                met = Sync(of="cluster_await", met=MET)
                return replace(s, epilogue=(met, sends, finishes, NextTurn(turn=TURN)))
            case ForTiles():
                # A sender whose slot was read is left alone: rank 0 arrives there no more.
                return s, If(when="sends", body=(emptied,))
        return s

    counts = tuple(Registers(name=n, dtype=S32, count=1) for n in (TURN, MET))
    body = (*(Zero(dst=r.name) for r in counts), *map_body(role.body, visit))
    return replace(role, locals=(*role.locals, *counts), body=body)
