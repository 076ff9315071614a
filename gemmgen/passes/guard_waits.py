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


def guard_waits(kernel: Kernel, target: Target) -> Kernel:
    """Spell every wait on an mbarrier as its guarded one where Kernel.watchdog asks for it. Sets
    Kernel.device_code and adds the parameter `watchdog`, the report in host memory."""
    if not kernel.watchdog:
        return kernel
    report = Param(name="watchdog", ctype="Watchdog*")
    return replace(
        kernel,
        roles=tuple(_guarded(kernel, i, r) for i, r in enumerate(kernel.roles)),
        params=(*kernel.params, report),
        device_code=("watchdog",),
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
