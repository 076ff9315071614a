"""Where stamps are asked for, let each warpgroup note when it has done what takes time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from ..errors import IRError
from ..ir.blocks import BLOCKS
from ..ir.nodes import (
    AddPartials,
    AwaitSignals,
    CloseStamps,
    CopyRows,
    Drain,
    ForK,
    ForTiles,
    If,
    Kernel,
    LoadBlocks,
    OpenStamps,
    Param,
    Role,
    SendPartials,
    SetRegisters,
    ShareAmax,
    StageTile,
    Stamp,
    StampTile,
    Stmt,
    StoreCommit,
    StoreRows,
    StoreValues,
    StoreWait,
    TmaLoad,
    Wait,
    WaitCopies,
    WaitForGrids,
    WgmmaCommit,
    WgmmaWait,
)
from ..ir.promotion import PROMOTION
from ..ir.stamps import Place
from ..ir.syncs import is_sync
from ..target import Target

LOADS = TmaLoad | LoadBlocks  # of those that follow each other, the last is stamped
WAITS = Wait | Drain | WgmmaWait | WaitCopies | StoreWait | AwaitSignals
WORKS = (
    CopyRows
    | WgmmaCommit
    | PROMOTION
    | SendPartials
    | AddPartials
    | ShareAmax
    | StageTile
    | StoreValues
    | StoreRows
    | StoreCommit
)


def instrument(kernel: Kernel, target: Target, stamps: int) -> Kernel:
    """After every wait, issue, promotion and store of a role put a stamp; with `stamps`, so many are kept of each warpgroup.
    Sets Kernel.stamps, Stamp, OpenStamps, StampTile and CloseStamps, Kernel.device_code, and adds the parameter `stamp_rings`."""
    if not stamps:
        return kernel
    if stamps & (stamps - 1):
        raise IRError(f"stamps={stamps} is not a power of two")
    return replace(
        kernel,
        stamps=stamps,
        roles=tuple(map(_role, kernel.roles)),
        # First, so that it adds a line to the signature and changes none.
        params=(Param(name="stamp_rings", ctype="StampRing*"), *kernel.params),
        device_code=(*kernel.device_code, "stamps"),
    )


def _role(role: Role) -> Role:
    """Nothing may stand before SetRegisters; and what is before a wait for other launches must not touch global memory,
    where stamps go."""
    early = [i for i, s in enumerate(role.body) if isinstance(s, SetRegisters | WaitForGrids)]
    first = early[-1] + 1 if early else 0
    body = _body(role.body[first:], "role", count())
    return replace(role, body=(*role.body[:first], OpenStamps(), *body, CloseStamps()))


def _body(
    body: tuple[Stmt, ...], place: Place, events: Iterator[int], then: Stmt | None = None
) -> tuple[Stmt, ...]:
    """then: what follows."""
    out: list[Stmt] = []
    for stmt, after in zip(body, (*body[1:], then), strict=True):
        match stmt:
            case ForTiles():
                tile = () if stmt.of == "runs" else (StampTile(),)
                inside = (*tile, *_body(stmt.body, "tile", events))
                out.append(replace(stmt, body=inside))
            case ForK():
                out.append(replace(stmt, body=_body(stmt.body, "block", events)))
            case _ if isinstance(stmt, BLOCKS):
                follows = after if isinstance(stmt, If) else None
                out.append(replace(stmt, body=_body(stmt.body, place, events, follows)))
            case _:
                out.append(stmt)
        if _takes_time(stmt, after):
            out.append(Stamp(event=next(events), place=place))
    return tuple(out)


def _takes_time(stmt: Stmt, after: Stmt | None) -> bool:
    last = isinstance(stmt, LOADS) and not isinstance(after, LOADS)
    return last or isinstance(stmt, WAITS | WORKS) or is_sync(stmt, "warpgroup", "consumers")
