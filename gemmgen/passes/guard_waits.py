"""In a watched build, make every wait tell where it is stuck instead of hanging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir.nodes import (
    Drain,
    GuardedDrain,
    GuardedWait,
    GuardedWaitForTurn,
    GuardedWaitTurn,
    GuardedWaitUnlessSeen,
    Kernel,
    Param,
    Role,
    Stmt,
    Wait,
    WaitForTurn,
    WaitTurn,
    WaitUnlessSeen,
)
from ..ir.rewrite import map_body
from ..target import Target

GUARDED: dict[type[Stmt], Callable[..., Stmt]] = {
    Wait: GuardedWait,
    WaitUnlessSeen: GuardedWaitUnlessSeen,
    WaitTurn: GuardedWaitTurn,
    WaitForTurn: GuardedWaitForTurn,
    Drain: GuardedDrain,
}


def guard_waits(kernel: Kernel, target: Target, watchdog: bool) -> Kernel:
    """With `watchdog`, spell every wait on an mbarrier as its guarded one. Sets
    Kernel.watchdog and device_code, and adds the parameter `watchdog`, the report in host memory."""
    if not watchdog:
        return kernel
    report = Param(name="watchdog", ctype="Watchdog*")
    return replace(
        kernel,
        roles=tuple(_guarded(kernel, i, r) for i, r in enumerate(kernel.roles)),
        params=(*kernel.params, report),
        device_code=("watchdog",),
        watchdog=True,
    )


def _guarded(kernel: Kernel, index: int, role: Role) -> Role:
    barriers = [b.name for b in kernel.barriers]

    def visit(stmt: Stmt) -> Stmt:
        guarded = GUARDED.get(type(stmt))
        if guarded is None:
            return stmt
        values = vars(stmt)
        return guarded(**values, role=index, index=barriers.index(values["barrier"]))

    return replace(role, body=map_body(role.body, visit))
