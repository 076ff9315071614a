"""Where asked, let consumers look whether the next stage is filled before they promote, not after."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, IRError, Rule
from ..ir.dtypes import S32
from ..ir.nodes import (
    ForK,
    Kernel,
    Peek,
    Piece,
    Registers,
    Role,
    Stmt,
    Wait,
    Zero,
)
from ..ir.rewrite import map_body, map_role, walk
from ..target import Target
from .read_direct import DIRECT_ALONE

PEEK = Rule(
    id="peek",
    says="peek needs cooperative consumers (no ping_pong, no slice_k) and a K loop that is not unrolled",
    because="In a ping-pong kernel the ring's next stage is often the other warpgroup's, and where warpgroups divide K blocks it always is. In an unrolled loop "
    "ptxas hoists the next wait by itself; with peek as well, many kernels spill.",
)
RULES = (PEEK,)

SEEN = "seen"


def peek_ahead(kernel: Kernel, target: Target, peek: bool) -> Kernel:
    """With `peek`, insert a Peek at the next stage where a K block's own was released, and let the consumers' Wait be left
    out where that has seen it: what is left of the K block hides how long the look takes. Sets Wait.seen; adds the
    register `seen`."""
    if not peek:
        return kernel
    if not kernel.ring:
        raise IllegalConfig(DIRECT_ALONE, {"peek": True}, "Use peek=false.")
    role = kernel.consumer
    unroll = max(s.unroll for s in walk(role.body) if isinstance(s, ForK))
    if role.numbered or unroll > 1:
        values = {
            "peek": True,
            "ping_pong": role.turns > 1,
            "slice_k": role.slices > 1,
            "unroll": unroll,
        }
        fix = "Use peek=false." if role.numbered else "Use unroll=1."
        raise IllegalConfig(PEEK, values, fix)
    return map_role(kernel, "consumer", _peeking)


def _peeking(role: Role) -> Role:
    seen = Registers(name=SEEN, dtype=S32, count=1)
    body = (Zero(dst=SEEN), *map_body(role.body, _visit))
    if not any(isinstance(s, Peek) for s in walk(body)):
        raise IRError("peek: no Piece of a K block releases a stage")
    return replace(role, locals=(*role.locals, seen), body=body)


def _visit(s: Stmt) -> Stmt:
    match s:
        case Wait(barrier="full"):
            return replace(s, seen=SEEN)
        case Piece() if s.release:
            return replace(s, release=(*s.release, Peek(barrier="full", dst=SEEN)))
    return s
