"""In a watched build, make every wait tell where it is stuck instead of hanging."""

from __future__ import annotations

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


def guard_waits(kernel: Kernel, target: Target) -> Kernel:
    """Spell Wait, WaitUnlessSeen, WaitTurn, WaitForTurn and Drain as the guarded ones where Kernel.watchdog asks for
    it. Sets Kernel.device_code and adds the parameter `watchdog`, the report in host memory."""
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
        match stmt:
            case WaitUnlessSeen():
                return GuardedWaitUnlessSeen(
                    **vars(stmt), role=index, index=barriers.index(stmt.barrier)
                )
            case Wait():
                return GuardedWait(**vars(stmt), role=index, index=barriers.index(stmt.barrier))
            case WaitTurn():
                return GuardedWaitTurn(**vars(stmt), role=index, index=barriers.index(stmt.barrier))
            case WaitForTurn():
                return GuardedWaitForTurn(
                    **vars(stmt), role=index, index=barriers.index(stmt.barrier)
                )
            case Drain():
                return GuardedDrain(**vars(stmt), role=index, index=barriers.index(stmt.barrier))
        return stmt

    return replace(role, body=map_body(role.body, visit))
