"""Where asked, load B of the first tile's first stages before the launches before this one are over."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, IRError, Rule
from ..ir.dtypes import S32
from ..ir.nodes import (
    ExpectTx,
    ForK,
    ForTiles,
    If,
    Kernel,
    LoadBlocks,
    Registers,
    Role,
    SetRegisters,
    Stmt,
    TakeShare,
    TmaLoad,
    Wait,
    WaitForGrids,
    Zero,
)
from ..ir.rewrite import map_body, walk
from ..target import Target
from .read_direct import DIRECT_ALONE

AHEAD_PDL = Rule(
    id="ahead-pdl",
    says="weights_ahead needs pdl",
    because="Without pdl a launch begins when the previous ones are over, so nothing can be loaded earlier.",
)
AHEAD_PROMISE = Rule(
    id="ahead-promise",
    says="weights_ahead needs a problem with weights_ready",
    because="Only the caller knows whether a launch that still runs writes B.",
)
AHEAD_TABLE = Rule(
    id="ahead-table",
    says="weights_ahead needs tiles whose group the host knows: no grouping, or batched",
    because="A table on the device, which the previous launch may be writing, gives the first tile's group.",
)
RULES = (AHEAD_PDL, AHEAD_PROMISE, AHEAD_TABLE)
AHEAD = "ahead"


def load_ahead(kernel: Kernel, target: Target, weights_ahead: bool) -> Kernel:
    """With `weights_ahead`, every role waits for the previous launches by itself. Before that the producer announces the bytes of
    the first tile's first stages and loads what of them is `ready`; its loop over K loads the rest. Moves
    WaitForGrids; sets ForTiles.of and ahead, ForK.of and ahead, If.ahead; adds the register `ahead`. Without it clears Kernel.ready."""
    if not weights_ahead:  # the promise alone makes no other kernel
        return replace(kernel, ready=()) if kernel.ready else kernel
    _check(kernel)
    prologue = tuple(s for s in kernel.prologue if not isinstance(s, WaitForGrids))
    roles = tuple(
        _loading(r, _ready(kernel)) if r.name == "producer" else _waiting(r) for r in kernel.roles
    )
    return replace(kernel, prologue=prologue, roles=roles)


def _check(kernel: Kernel) -> None:
    values = {"weights_ahead": True}
    if not kernel.ring:
        raise IllegalConfig(DIRECT_ALONE, values, "Use weights_ahead=false.")
    if not kernel.pdl:
        raise IllegalConfig(
            AHEAD_PDL, values | {"pdl": False}, "Use pdl=true, or weights_ahead=false."
        )
    if not kernel.ready:
        raise IllegalConfig(
            AHEAD_PROMISE,
            values | {"weights_ready": False},
            "Say weights_ready=true, if it is true, or use weights_ahead=false.",
        )
    if kernel.tables:
        raise IllegalConfig(
            AHEAD_TABLE, values | {"table": kernel.tables[0]}, "Use weights_ahead=false."
        )


def _ready(kernel: Kernel) -> frozenset[str]:
    """Tensors that are ready, by which blocks are loaded, and the maps of them."""
    return frozenset((*kernel.ready, *(m.name for m in kernel.maps if m.tensor in kernel.ready)))


def _waiting(role: Role, *before: Stmt) -> Role:
    """Every thread of it, once it has its registers and has done what is done `before`."""
    at = sum(isinstance(s, SetRegisters) for s in role.body[:1])
    return replace(role, body=(*role.body[:at], *before, WaitForGrids(), *role.body[at:]))


def _loading(role: Role, ready: frozenset[str]) -> Role:
    """A producer that loads what is `ready` before it waits. Its loop over K waits for a stage, announces the bytes and loads;
    for the K blocks that were ahead it only loads what was not ready."""
    tiles = next(s for s in walk(role.body) if isinstance(s, ForTiles))
    loop = tiles.body[-1]
    if not isinstance(loop, ForK) or not isinstance(loop.body[0], Wait):
        raise IRError("load_ahead: the producer's tile does not end in a loop that waits first")
    shares = tuple(s for s in tiles.body if isinstance(s, TakeShare))
    early = tuple(s for s in loop.body if _is_early(s, ready))
    rest = tuple(s for s in loop.body[1:] if not _is_early(s, ready))
    block = (If(when="behind", ahead=AHEAD, body=(loop.body[0], *early)), *rest)
    first = ForTiles(of="first", body=(*shares, ForK(of="ahead", ahead=AHEAD, body=early)))

    def visit(s: Stmt) -> Stmt:
        match s:
            case ForK():
                return replace(s, body=block)
            case ForTiles():
                return replace(s, ahead=AHEAD)
        return s

    count = Registers(name=AHEAD, dtype=S32, count=1)
    late = replace(role, locals=(*role.locals, count), body=map_body(role.body, visit))
    return _waiting(late, Zero(dst=AHEAD), If(when="leader", body=(first,)))


def _is_early(s: Stmt, ready: frozenset[str]) -> bool:
    if isinstance(s, LoadBlocks):
        return s.tensor in ready
    return isinstance(s, ExpectTx) or (isinstance(s, TmaLoad) and s.tensor_map in ready)
