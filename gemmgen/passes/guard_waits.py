"""In a watched build, make every wait tell where it is stuck instead of hanging."""

from __future__ import annotations

from dataclasses import replace

from ..ir.nodes import (
    AddPartials,
    AwaitSignals,
    Drain,
    Kernel,
    Param,
    Role,
    Stmt,
    Wait,
    Watch,
)
from ..ir.rewrite import map_body
from ..target import Target


def guard_waits(kernel: Kernel, target: Target, watchdog: bool) -> Kernel:
    """With `watchdog`, let every wait on an mbarrier be watched: sets `watch`. Sets
    Kernel.watchdog and device_code, and adds the parameter `watchdog`, the report in host memory."""
    if not watchdog:
        return kernel
    report = Param(name="watchdog", ctype="Watchdog*")
    return replace(
        kernel,
        roles=tuple(_watched(kernel, i, r) for i, r in enumerate(kernel.roles)),
        params=(*kernel.params, report),
        device_code=(
            "watchdog",
            *("watchdog_flag",) * kernel.scheduler.streams,
            *("watchdog_epoch",) * (kernel.peers.flags + kernel.arrivals.chunks > 0),
        ),
        watchdog=True,
    )


def _watched(kernel: Kernel, index: int, role: Role) -> Role:
    barriers = [b.name for b in kernel.barriers]

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, AwaitSignals):
            return replace(stmt, watch=Watch(index, len(barriers)))
        if isinstance(stmt, AddPartials) and stmt.through == "memory":
            return replace(stmt, watch=Watch(index, len(barriers)))
        if not isinstance(stmt, Wait | Drain):
            return stmt
        return replace(stmt, watch=Watch(index, barriers.index(stmt.barrier)))

    return replace(role, body=map_body(role.body, visit))
