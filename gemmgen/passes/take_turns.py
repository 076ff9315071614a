"""Where asked, ping-pong: let the consumer warpgroups take tiles in turns, one stores while the other multiplies."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.dtypes import S32
from ..ir.nodes import (
    Arrive,
    Barrier,
    ForTiles,
    If,
    InitBarrier,
    Kernel,
    NextTurn,
    Registers,
    Role,
    Stmt,
    TileBody,
    Wait,
    Zero,
)
from ..ir.rewrite import map_body, map_role
from ..ir.syncs import Sync, is_fence
from ..target import Target

PING_PONG = Rule(
    id="ping-pong",
    says="ping_pong needs two or three consumers, and no split-K",
    because="Consumer warpgroups with tiles of their own alternate, so one is not enough. CTAs that divide K "
    "exchange one tile's partial sums at a time.",
)
RULES = (PING_PONG,)

BARRIER, TURN = "turns", "turn"


def take_turns(kernel: Kernel, target: Target, ping_pong: bool) -> Kernel:
    """With `ping_pong`, give each consumer warpgroup a tile in its turn, which it multiplies once the one before has seen all
    of its K blocks. Sets ForTiles.of; inserts a Wait for its turn, an Arrive at the next one's, what counts turns, and a barrier
    for each warpgroup. Products bring a warp's lanes together behind their Wait; where a tile may have no K blocks they meet before the Arrive, or one
    lane could pass its turn, and take its next, before another has seen this one."""
    if not ping_pong:
        return kernel
    turns = kernel.consumer.turns
    if turns == 1:
        raise IllegalConfig(PING_PONG, alone(kernel, 1), "Use ping_pong=false.")
    init = InitBarrier(barrier=BARRIER)
    prologue = map_body(kernel.prologue, lambda s: (init, s) if is_fence(s, "barriers") else s)
    barriers = (*kernel.barriers, Barrier(name=BARRIER, stages=turns, per="turn"))
    kernel = replace(kernel, prologue=prologue, barriers=barriers)
    empty = kernel.scheduler.windowed or bool(kernel.groups.depths)
    return map_role(kernel, "consumer", lambda r: _in_turns(r, empty))


def alone(kernel: Kernel, split_k: int) -> dict[str, object]:
    """What PING_PONG refuses."""
    return {"ping_pong": True, "consumers": kernel.consumer.count, "split_k": split_k}


def _in_turns(role: Role, empty: bool) -> Role:
    """empty: whether a tile may have no K blocks."""
    wait = Wait(barrier=BARRIER, per="turn", turn=TURN)
    met = (Sync(of="warp"),) * empty
    passed = (*met, Arrive(barrier=BARRIER, to="next"), NextTurn(turn=TURN))

    def visit(s: Stmt) -> Stmt:
        match s:
            case TileBody():
                # A run's tiles before may be another warpgroup's.
                alike = (If(when="has_blocks", body=s.run),) * bool(s.run)
                setup = (*alike, *s.setup, wait)
                return replace(s, run=(), setup=setup, drain=(*passed, *s.drain))
            case ForTiles():
                return replace(s, of="turn")
        return s

    turn = Registers(name=TURN, dtype=S32, count=1)
    body = (Zero(dst=TURN), *map_body(role.body, visit))
    return replace(role, locals=(*role.locals, turn), body=body)
