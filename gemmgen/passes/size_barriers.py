"""Count who arrives at each barrier and how many bytes land on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.nodes import (
    Arrive,
    ArriveCluster,
    ExpectPartials,
    ExpectTx,
    ForK,
    InitBarrier,
    Kernel,
    PassTurn,
    ReleasePartials,
    Role,
    SendPartials,
    Stmt,
    TmaLoad,
    TmaLoadMulticast,
)
from ..ir.rewrite import map_stmts, walk
from ..target import Target
from .split_boxes import box_bytes

BARRIER_BYTES = Rule(
    id="barrier-bytes",
    says="one pipeline stage must stay within an mbarrier's transaction count",
    because="The tx-count of an mbarrier has 20 bits and a sign.",
)
RULES = (BARRIER_BYTES,)

PER_TILE = (ExpectPartials, SendPartials, ReleasePartials, PassTurn)


def size_barriers(kernel: Kernel, target: Target) -> Kernel:
    """Sum arrivals and bytes over the statements. Sets Barrier.arrivals and tx_bytes,
    InitBarrier.arrivals, ExpectTx.tx_bytes and ExpectPartials.tx_bytes."""
    arrivals: Counter[str] = Counter()
    tx_bytes: Counter[str] = Counter()
    for role in kernel.roles:
        for stmt in _once_per_phase(role):
            _count(kernel, role, stmt, target, arrivals, tx_bytes)
    for name, count in tx_bytes.items():
        if count > target.mbarrier_tx_limit:
            values = {"barrier": name, "bytes": count}
            raise IllegalConfig(BARRIER_BYTES, values, "Use a smaller tile or block_k_bytes.")

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case ExpectTx(barrier=name) | ExpectPartials(barrier=name):
                return replace(stmt, tx_bytes=tx_bytes[name])
            case InitBarrier(barrier=name):
                return replace(stmt, arrivals=arrivals[name])
        return stmt

    barriers = tuple(
        replace(b, arrivals=arrivals[b.name], tx_bytes=tx_bytes[b.name]) for b in kernel.barriers
    )
    return map_stmts(replace(kernel, barriers=barriers), visit)


def _once_per_phase(role: Role) -> list[Stmt]:
    """What happens once per phase: the bodies of the K loops, and once per tile the exchange of partial
    sums and of turns. A lagged release after the loop is the one that the loop's first round left out."""
    loops = [s for s in walk(role.body) if isinstance(s, ForK)]
    exchange = [s for s in walk(role.body) if isinstance(s, PER_TILE)]
    return [s for loop in loops for s in walk(loop.body)] + exchange


def _count(
    kernel: Kernel,
    role: Role,
    stmt: Stmt,
    target: Target,
    arrivals: Counter[str],
    tx_bytes: Counter[str],
) -> None:
    warps = role.sharing * target.warpgroup // target.warp
    match stmt:
        case Arrive() | PassTurn():
            arrivals[stmt.barrier] += warps
        case ArriveCluster():
            arrivals[stmt.barrier] += warps * kernel.cluster.size
        case ExpectTx() | ExpectPartials():
            arrivals[stmt.barrier] += 1
        case TmaLoad():
            tx_bytes[stmt.barrier] += box_bytes(kernel, stmt)
        case TmaLoadMulticast():
            tx_bytes[stmt.barrier] += box_bytes(kernel, stmt) * kernel.cluster.size
        case ReleasePartials():
            arrivals[stmt.barrier] += warps
        case SendPartials():
            (acc,) = (r for r in role.locals if r.name == stmt.src)
            sent = acc.count * acc.dtype.bytes * role.count * target.warpgroup
            tx_bytes[stmt.barrier] += sent * (kernel.cluster.k - 1)
