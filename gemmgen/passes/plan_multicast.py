"""Turn loads of the operand a cluster shares into multicasts, and releases into cluster-wide ones."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.nodes import (
    Arrive,
    Drain,
    ForTiles,
    Kernel,
    Role,
    Stmt,
    Sync,
    TmaLoad,
)
from ..ir.rewrite import map_body, map_role, map_stmts
from ..target import Target

CLUSTER_SIZE = Rule(
    id="cluster-size",
    says="a cluster must divide the SM count and be at most the portable size",
    because="A persistent grid of whole clusters leaves SMs idle otherwise; above 8 CTAs a launch is not portable.",
)
MULTICAST_SLICE = Rule(
    id="multicast-slice",
    says="the tile a cluster shares must split into slices of a multiple of 8 rows (32 scales) per CTA; "
    "the rows of an MN-major operand are K",
    because="Each CTA multicasts its slice to the same place of every CTA: a slice must start where the swizzle "
    "pattern repeats and TMA's 128-byte shared-memory alignment holds.",
)
RULES = (CLUSTER_SIZE, MULTICAST_SLICE)


def plan_multicast(kernel: Kernel, target: Target) -> Kernel:
    """Each CTA of a cluster loads its slice of the shared operand for all. Sets TmaLoad.to, slice and
    mask, Arrive.to, the start-up Sync of the cluster and the producer's Drain."""
    cluster = kernel.cluster
    if not cluster.shared:
        return kernel
    if cluster.size > target.cluster_max or target.sms % cluster.size:
        values = {"cluster": cluster.size, "sms": target.sms}
        raise IllegalConfig(CLUSTER_SIZE, values, "Use multicast=none.")
    base = f"tile.{cluster.shared}_row"

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case TmaLoad() if any(c.base == base for c in stmt.coords):
                return _multicast(kernel, stmt)
            case Arrive(barrier="empty"):
                return replace(stmt, to="cluster")
            case Sync(of="cta"):
                return Sync(of="cluster")
        return stmt

    return map_role(map_stmts(kernel, visit), "producer", _drain)


def _multicast(kernel: Kernel, load: TmaLoad) -> TmaLoad:
    """Slices are rows of the tile (K of an MN-major operand), and of a line of scales its columns."""
    size = kernel.cluster.size
    smem = kernel.buffer(load.smem)
    side, unit = (smem.cols, 32) if smem.use == "scales" else (smem.rows, 8)
    if side % (size * unit):
        values = {"shared": load.smem, "rows": side, "cluster": size}
        raise IllegalConfig(
            MULTICAST_SLICE,
            values,
            f"Use a multiple of {size * unit} or multicast the other operand.",
        )
    step = side // size
    inner, outer, *others = load.coords
    if smem.use == "scales":
        inner = replace(inner, rank_step=step)
    else:
        outer = replace(outer, rank_step=step)
    return replace(
        load,
        coords=(inner, outer, *others),
        to="cluster",
        rank_bytes=None,
        slice=step,
        mask=(1 << size) - 1,
    )


def _drain(role: Role) -> Role:
    """The peer may still arrive on this CTA's barriers: leave only when every stage came back."""
    drain = Drain(barrier="empty")
    return replace(
        role, body=map_body(role.body, lambda s: (s, drain) if isinstance(s, ForTiles) else s)
    )
