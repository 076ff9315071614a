"""Where asked, deal the K blocks of all tiles out to the CTAs in equal stretches, and let one CTA finish each tile."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.exchange import PARTIALS
from ..ir.groupings import GROUPINGS
from ..ir.nodes import (
    AddPartials,
    If,
    Kernel,
    Param,
    Role,
    SendPartials,
    Stmt,
    TileBody,
    Workspace,
)
from ..ir.rewrite import map_body, map_role
from ..levers.stream import COUNTED as GROUPED
from ..target import Target
from .derive_maps import from_k_first
from .split_k import waves

STREAM_ALONE = Rule(
    id="stream-alone",
    says="stream needs independent CTAs: multicast none, split_k 1, ping_pong false",
    because="Stretches begin and end anywhere in K, so CTAs have no K block in common to multicast, and warpgroups no whole tiles "
    "to alternate between.",
)
STREAM_GROUPS = Rule(
    id="stream-groups",
    says="stream needs tiles that the host can count and that one GPU sums: no collective, and no grouping, batched or summed",
    because="Stretches are equal parts of all tiles' K blocks, whose number would be known on the device only. Of a tile that is "
    "other GPUs', its parts would first have to meet.",
)
RULES = (STREAM_ALONE, STREAM_GROUPS)
COUNTED = tuple(GROUPINGS[x].scheduler for x in GROUPED)  # schedulers
# Registers that others' sums arrive in at once: with 256 128x128 tiles spilled 124 bytes.
IN_FLIGHT = 32


def stream_k(kernel: Kernel, target: Target, stream: bool) -> Kernel:
    """With `stream`, a CTA's tiles are those of its stretch of K blocks, of which the first may have begun before and the last
    may go on after it. What began before goes to the CTA that has the beginning: that one adds what others send, in order of
    K, and goes on to the epilogue. Sets Scheduler.streams, Kernel.workspace, Coord.start and LoadBlockScales.block; inserts
    what sends and adds, and the parameter that points to the workspace."""
    if not stream:
        return kernel
    _check(kernel)
    sums = waves(kernel)
    acc = next(r for r in kernel.consumer.locals if r.name in sums)
    threads, warps = target.warpgroup * kernel.consumers, target.warpgroup // target.warp
    kernel = replace(
        from_k_first(kernel),
        scheduler=replace(kernel.scheduler, streams=True),
        workspace=Workspace(
            slot=len(sums) * acc.count * threads, flags=len(sums) * kernel.consumers * warps
        ),
        params=(*kernel.params, Param(name=PARTIALS, ctype=f"{acc.dtype.cuda}*")),
    )
    ahead = max(1, IN_FLIGHT // acc.count)
    return map_role(kernel, "consumer", lambda r: _handing_over(r, sums, ahead))


def _check(kernel: Kernel) -> None:
    c, turns = kernel.cluster, kernel.consumer.turns
    if c.size > 1 or turns > 1:
        shared = c.shared or "none"
        values = {"multicast": shared, "split_k": c.k, "ping_pong": turns > 1}
        raise IllegalConfig(STREAM_ALONE, values, "Use stream=false.")
    if kernel.scheduler.name not in COUNTED:
        groups = {"stream": True, "scheduler": kernel.scheduler.name}
        raise IllegalConfig(STREAM_GROUPS, groups, "Use stream=false.")


def _handing_over(role: Role, sums: dict[str, int], ahead: int) -> Role:
    send = tuple(SendPartials(src=a, wave=w, through="memory") for a, w in sums.items())
    add = tuple(AddPartials(dst=a, wave=w, through="memory", unroll=ahead) for a, w in sums.items())

    def visit(s: Stmt) -> Stmt:
        if not isinstance(s, TileBody):
            return s
        head = If(when="head", body=(*add, *s.epilogue))
        return replace(s, epilogue=(If(when="inside", body=send), head))

    return replace(role, body=map_body(role.body, visit))
