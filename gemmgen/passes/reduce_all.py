"""Where several GPUs store the sum of all, let each send every tile's sum to all of them, and add what they sent."""

from __future__ import annotations

from dataclasses import replace

from ..ir.collectives import ALL_REDUCE, COLLECTIVES
from ..ir.nodes import (
    AddPartials,
    AwaitSignals,
    Kernel,
    Role,
    SendPartials,
    Signal,
    Stmt,
    TileBody,
    Zero,
)
from ..ir.rewrite import map_body, map_role
from ..target import Target
from .scatter_rows import PASSING, with_mailboxes

SCHEDULER = COLLECTIVES[ALL_REDUCE].scheduler


def reduce_all(kernel: Kernel, target: Target) -> Kernel:
    """Of a kernel that walks all rows on each rank: let each CTA send the sum of a tile to every rank, its own among them, say so to the
    others, and wait for theirs. Then it adds all ranks' sums in order of ranks, which is the same everywhere, and goes on to the epilogue. Which launch it is
    it reads as where rows are scattered. Sets Kernel.peers; inserts what sends, says, waits, adds and numbers, and the
    parameters that lead to the ranks' memories."""
    if kernel.scheduler.name != SCHEDULER:
        return kernel
    kernel, sums, ahead = with_mailboxes(kernel, target)
    kernel = replace(kernel, peers=replace(kernel.peers, every=True))
    return map_role(kernel, "consumer", lambda r: _exchanging(r, sums, ahead))


def _exchanging(role: Role, sums: dict[str, int], ahead: int) -> Role:
    send = (SendPartials(src=a, wave=w, through="every_rank") for a, w in sums.items())
    zero = (Zero(dst=a) for a in sums)
    add = (AddPartials(dst=a, wave=w, through="every_rank", unroll=ahead) for a, w in sums.items())
    whole = (*send, Signal(by="telling"), AwaitSignals(), *zero, *add)

    def visit(s: Stmt) -> Stmt:
        return replace(s, epilogue=(*whole, *s.epilogue)) if isinstance(s, TileBody) else s

    return replace(role, body=(PASSING, *map_body(role.body, visit)))
