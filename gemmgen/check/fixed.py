"""What is decided by the statements alone, whatever the loops do: P12, collectives, the layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ..ir import nodes as ir
from ..ir.blocks import BLOCKS, is_if, of_run
from ..ir.rewrite import walk
from ..ir.stmts import releases
from .finding import Finding
from .overlaps import overlaps
from .properties import NAMED_BARRIER, PARITY, RACE, REGISTERS


@dataclass(frozen=True, kw_only=True)
class RegisterFile:
    """PTX ISA, setmaxnreg, and the CUDA programming guide's table for compute capability 9.0.

    Written down here once more, from the sources, so that the proof does not lean on the numbers
    that the passes decided with. A test compares the two.
    """

    per_sm: int = 65536
    per_thread: int = 255
    least: int = 24
    most: int = 256
    step: int = 8
    warpgroup: int = 128

    def at_launch(self, threads: int) -> int:
        """Registers per thread that a launch of this many threads can reserve."""
        return self.per_sm // threads // self.step * self.step


FILE = RegisterFile()

SINGLE = (  # what one thread may do alone; everything else is done by whole warps
    ir.ForChunks,
    ir.ForK,
    ir.PrefetchMap,
    ir.InitBarrier,
    ir.ExpectTx,
    ir.TakeShare,
    ir.Drain,
    ir.TmaLoad,
    ir.LoadBlocks,
    ir.LoadPages,
    ir.TmaStore,
    ir.StoreCommit,
    ir.StoreWait,
    ir.StampTile,
    ir.Stamp,
)


def fixed(kernel: ir.Kernel) -> Iterator[Finding]:
    """Everything that needs no instance."""
    for text in overlaps(kernel):
        yield Finding(property=RACE, message=text)
    for body in (kernel.prologue, *(r.body for r in kernel.roles)):
        yield from _collectives(body, False)
    yield from _moves(kernel)
    yield from _turns(kernel)


def _collectives(body: tuple[ir.Stmt, ...], single: bool) -> Iterator[Finding]:
    for stmt in body:
        leader = is_if(stmt, "cta_leader", "leader")
        if single and not leader and not _may_be_alone(stmt):
            text = f"{_named(stmt)} is for whole warps, but one thread would execute it"
            yield Finding(property=NAMED_BARRIER, message=text)
        if isinstance(stmt, BLOCKS):
            yield from _collectives(stmt.body, single or leader)


def _may_be_alone(stmt: ir.Stmt) -> bool:
    match stmt:
        case ir.If():
            return stmt.when in ("after_first", "behind", "whole", "awaited")
        case ir.ForTiles():
            return not of_run(stmt)
        case ir.Wait():
            return stmt.per == "stage"
        case ir.Arrive():
            return releases(stmt)
        case ir.Epoch():
            return stmt.by == "passing"
        case ir.AwaitSignals():
            return stmt.of == "rows"
        case ir.Fence():
            return stmt.of in ("barriers", "arrivals")
    return isinstance(stmt, SINGLE)


def _named(stmt: ir.Stmt) -> str:
    of = "when" if isinstance(stmt, ir.If) else stmt.spelled_by
    return f"{type(stmt).__name__} {getattr(stmt, of)}" if of else type(stmt).__name__


def _turns(kernel: ir.Kernel) -> Iterator[Finding]:
    """A lane that passes its warp's turn knows that the others have seen it: by products, which they make together, or where a tile may have
    none by a meeting. Else its warpgroup's next turn may come before they look at this one, and they wait for ever."""
    if not (kernel.scheduler.windowed or kernel.groups.depths):
        return
    blocks = (s for role in kernel.roles for s in walk(role.body) if isinstance(s, BLOCKS))
    for body in (*(r.body for r in kernel.roles), *(s.body for s in blocks)):
        for before, s in pairwise((None, *body)):
            if isinstance(s, ir.Arrive) and s.to == "next" and not _meet(before):
                text = "a turn is passed where a tile may have no products, and lanes of the warp have not met"
                yield Finding(property=PARITY, message=text)


def _meet(s: ir.Stmt | None) -> bool:
    return isinstance(s, ir.Sync) and s.of == "warp"


# ---- P12 ----------------------------------------------------------------------------------------


def _moves(kernel: ir.Kernel) -> Iterator[Finding]:
    """Every role's setmaxnreg, and whether the pool can serve all increases at last."""
    launch = FILE.at_launch(kernel.threads * kernel.per_sm)
    used = 0
    for role in kernel.roles:
        moves = [s for s in walk(role.body) if isinstance(s, ir.SetRegisters)]
        yield from _role(role, moves, launch)
        count = moves[0].count if moves else launch
        used += count * FILE.warpgroup * role.count
        meant = (count,) if moves else (launch, min(launch, FILE.per_thread))
        if role.registers not in meant:
            text = f"{role.name} is said to have {role.registers} registers, but has {count}"
            yield Finding(property=REGISTERS, message=text)
    pool = launch * kernel.threads
    if used > pool:
        text = f"the roles want {used} registers, the launch reserved {pool}: an increase would wait for ever"
        yield Finding(property=REGISTERS, message=text)


def _role(role: ir.Role, moves: list[ir.SetRegisters], launch: int) -> Iterator[Finding]:
    def fail(text: str) -> Finding:
        return Finding(property=REGISTERS, message=f"{role.name}: {text}")

    if len(moves) > 1 or (moves and moves[0] not in role.body[:1]):
        yield fail("setmaxnreg must be executed once, first and by every warp")
    for s in moves:
        if not FILE.least <= s.count <= FILE.most or s.count % FILE.step:
            yield fail(
                f"setmaxnreg takes multiples of {FILE.step} from {FILE.least} to {FILE.most}"
            )
        if (s.count > launch and s.direction != "inc") or (
            s.count < launch and s.direction != "dec"
        ):
            yield fail(f"setmaxnreg.{s.direction} to {s.count}, from the launch's {launch}")
    held = sum(r.count for r in role.locals if not r.transient)
    have = moves[0].count if moves else launch
    if held > have:
        yield fail(f"arrays of {held} registers do not fit {have}")
