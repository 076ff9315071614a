"""Count who arrives at each barrier and how many bytes land on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.nodes import (
    Arrive,
    ExpectTx,
    ForK,
    InitBarrier,
    Kernel,
    LoadBlocks,
    Role,
    SendPartials,
    Stmt,
    TmaLoad,
)
from ..ir.rewrite import map_stmts, walk
from ..ir.stmts import multicasts
from ..target import Target
from .split_boxes import box_bytes

BARRIER_BYTES = Rule(
    id="barrier-bytes",
    says="one pipeline stage must stay within an mbarrier's transaction count",
    because="The tx-count of an mbarrier has 20 bits and a sign.",
)
RULES = (BARRIER_BYTES,)


def size_barriers(kernel: Kernel, target: Target) -> Kernel:
    """Sum arrivals and bytes over the statements. Sets Barrier.arrivals and tx_bytes,
    InitBarrier.arrivals, and ExpectTx.tx_bytes."""
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
            case ExpectTx(barrier=name):
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
    exchange = [s for s in walk(role.body) if _per_tile(s)]
    return [s for loop in loops for s in walk(loop.body)] + exchange


def _per_tile(s: Stmt) -> bool:
    match s:
        case Arrive():
            return s.to in ("next", "others")
        case ExpectTx():
            return s.per == "tile"
    return isinstance(s, SendPartials) and s.through == "cluster"


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
        case Arrive():
            arrivals[stmt.barrier] += warps * (kernel.cluster.size if stmt.to == "cluster" else 1)
        case ExpectTx():
            arrivals[stmt.barrier] += 1
        case TmaLoad():
            ctas = kernel.cluster.size if multicasts(stmt) else 1
            tx_bytes[stmt.barrier] += box_bytes(kernel, stmt) * ctas
        case LoadBlocks():
            tx_bytes[stmt.barrier] += kernel.buffer(stmt.smem).stage_bytes
        case SendPartials():
            (acc,) = (r for r in role.locals if r.name == stmt.src)
            sent = acc.count * acc.dtype.bytes * role.count * target.warpgroup
            tx_bytes[stmt.barrier] += sent * (kernel.cluster.k - 1)
