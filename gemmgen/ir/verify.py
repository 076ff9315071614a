"""Well-formedness of the IR: every name refers to something, every statement stands where it may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from math import inf
from typing import Any

from ..errors import IRError
from .blocks import HOLDING, Piece, TileBody, of_run
from .nodes import (
    AddPartials,
    Arrive,
    AwaitSignals,
    CopyRows,
    Decode,
    Evaluate,
    ExpectTx,
    ForChunks,
    ForK,
    ForTiles,
    If,
    Kernel,
    LoadBlocks,
    LoadBlockScales,
    LoadFragments,
    LoadIndices,
    LoadPages,
    MultiplyFragments,
    NextTurn,
    Peek,
    PerSplit,
    Promote,
    ReadCodes,
    RejoinRing,
    SendPartials,
    ShareScales,
    Signal,
    Stmt,
    StoreValues,
    SumSquares,
    Sync,
    TakeShare,
    TmaLoad,
    TmaStore,
    Wait,
)
from .verify_exchange import RANKS, awaited, kept, noted, numbered, signalled, through
from .verify_fields import fragments, met, promoted_by, runs, valued

RESOURCES = ("maps", "params", "smem", "barriers")
REGISTER_FIELDS = (
    *("dst", "src", "row_scales", "block_scales", "column_scales", "indices", "begun"),
    *("amax", "turn", "seen", "met", "ahead", "owed", "row_fragments", "column_fragments"),
    *("codes", "records", "decoded", "pages"),
)
# Fields of statements that name something, and the table that has it.
NAMES = {
    "barrier": "barriers",
    "tensor_map": "maps",
    **dict.fromkeys(("smem", "a", "b"), "smem"),
    "tensor": "params",
    **dict.fromkeys(REGISTER_FIELDS, "locals"),
}
OUTER: dict[type, type] = {
    TileBody: ForTiles,
    Piece: ForK,
    ForK: ForTiles,
    PerSplit: ForTiles,
    ForChunks: ForTiles,
    TakeShare: ForTiles,
    NextTurn: ForTiles,
    AwaitSignals: ForTiles,
    LoadIndices: ForTiles,
    LoadPages: ForTiles,
    CopyRows: ForK,
    Peek: ForK,
    MultiplyFragments: ForK,
    LoadBlocks: ForK,
    ReadCodes: ForK,
    RejoinRing: ForTiles,
    Decode: ForK,
    SumSquares: ForK,
}
OUTER_OF_IF: dict[str, type] = {
    **dict.fromkeys(("after_first", "behind", "new_share"), ForK),
    **dict.fromkeys(("new_group", "has_blocks", "no_blocks", "finishes"), ForTiles),
    **dict.fromkeys(("inside", "head", "theirs", "ours", "awaited"), ForTiles),
}
ASKING = ("behind", "new_share", "awaited", "owes", "begun")  # conditions of a register
LOOPS, BOXES = (ForTiles, ForChunks, ForK), (TmaLoad, TmaStore)
OF_CHUNKS = (ForK, ShareScales, LoadBlockScales)  # some or all of them stand in a chunk
# A wait leaves no fewer than no groups.
AT_LEAST_0 = dict.fromkeys(("pending", "distance", "lag", "more"), (0, inf))
COUNTS: dict[str, tuple[float, float]] = {**AT_LEAST_0, "flip": (0, 1)}

# Of resources, by name; "peers": the cluster, if it is of several CTAs; "wire": to what sums are rounded, by `through`.
Tables = dict[str, dict[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What there is to check in statements of one class. To ask each statement anew took most of the time in
    which a kernel is lowered. names: items of NAMES, and whether a field may be empty: it names none."""

    names: tuple[tuple[str, str, bool], ...]
    counts: tuple[tuple[str, tuple[float, float]], ...]
    box: bool
    outer: type | None
    loop: bool
    chunk: bool
    block: bool


def verify(kernel: Kernel) -> Kernel:
    """Return `kernel` if it is well formed, raise IRError naming the offender if not."""
    _unique(kernel)
    tables = {name: {x.name: x for x in getattr(kernel, name)} for name in RESOURCES}
    tables["peers"] = {"cluster": kernel.cluster} if kernel.cluster.size > 1 else {}
    tables["wire"] = dict.fromkeys(RANKS, kernel.peers.wire) if kernel.peers.wire else {}
    for m in kernel.maps:
        _known("smem", m.smem, tables["smem"], m)
    numbered(kernel)
    _body(kernel.prologue, {**tables, "locals": {}, "back": {}}, ())
    for role in kernel.roles:
        back = dict.fromkeys(range(role.slices + 1))
        _body(role.body, {**tables, "locals": {r.name: r for r in role.locals}, "back": back}, ())
    _warpgroups(kernel)
    return kernel


def _body(body: tuple[Stmt, ...], tables: Tables, inside: tuple[type, ...]) -> None:
    for stmt in body:
        kind: type = type(stmt)
        of = _checks(kind)
        for field, table, none in of.names:
            _known(field, getattr(stmt, field), tables[table], stmt, none)
        for field, (least, most) in of.counts:
            if not least <= getattr(stmt, field) <= most:
                allowed = f"from {least} to {most}" if most < inf else f"at least {least}"
                raise IRError(f"{kind.__name__}.{field} is not {allowed}")
        if of.box:
            _box(stmt, tables)  # type: ignore[arg-type]
        outer, name = of.outer, kind.__name__
        if isinstance(stmt, If):
            outer, name = OUTER_OF_IF.get(stmt.when), f"If {stmt.when}"
            if bool(stmt.ahead) != (stmt.when in ASKING):
                raise IRError(f"{name} asks {stmt.ahead!r}")
        elif of_run(stmt):
            outer = ForTiles
        elif isinstance(stmt, Wait):
            outer = _wait(stmt, tables)
        elif isinstance(stmt, Arrive):
            outer = _arrive(stmt, tables)
        elif isinstance(stmt, ExpectTx):
            _expect(stmt, tables)
        elif isinstance(stmt, LoadBlockScales):
            _loaded(stmt, tables)
        elif isinstance(stmt, LoadFragments):
            outer = fragments(stmt)
        elif isinstance(stmt, Promote):
            promoted_by(stmt)
        elif isinstance(stmt, Evaluate | StoreValues):
            valued(stmt, tables)
        elif isinstance(stmt, Sync):
            met(stmt, tables)
        elif isinstance(stmt, Signal):
            outer = signalled(stmt)
        elif isinstance(stmt, AwaitSignals):
            awaited(stmt)
        elif isinstance(stmt, TakeShare):
            noted(stmt)
        elif isinstance(stmt, SendPartials | AddPartials):
            through(stmt, tables)
        if of.block:
            kept(stmt.body)  # type: ignore[attr-defined]
            runs(stmt)
        if outer and outer not in inside:
            raise IRError(f"{name} stands outside {outer.__name__}")
        if of.loop and kind in inside and not of_run(stmt):
            raise IRError(f"{kind.__name__} stands inside another")
        if of.chunk:
            _chunks(stmt, inside)
        if of.block:
            _body(stmt.body, tables, (*inside, kind))  # type: ignore[attr-defined]


@cache
def _checks(kind: type) -> Checks:
    has = {f.name: f.default == "" for f in fields(kind)}
    return Checks(
        names=tuple((name, table, has[name]) for name, table in NAMES.items() if name in has),
        counts=tuple(x for x in COUNTS.items() if x[0] in has),
        box=issubclass(kind, BOXES),
        outer=OUTER.get(kind),
        loop=issubclass(kind, LOOPS),
        chunk=issubclass(kind, OF_CHUNKS),
        block=issubclass(kind, HOLDING),
    )


def _chunks(stmt: Stmt, inside: tuple[type, ...]) -> None:
    """What reads a chunk's K blocks stands in one, and what reads all of the tile's does not."""
    wanted: tuple[type, ...] = ()
    match stmt:
        case ForK() if bool(stmt.ahead) != (stmt.of == "ahead"):
            raise IRError(f"a ForK of a {stmt.of} counts by {stmt.ahead!r}")
        case ForTiles() if stmt.ahead and stmt.of != "cta":
            raise IRError(f"ForTiles of a {stmt.of} counts by {stmt.ahead!r}")
        case ForK(of="chunk"):
            wanted = (ForChunks,)
        case ForK() if ForChunks in inside:
            raise IRError("a ForK of a tile stands inside ForChunks")
        case ShareScales():
            wanted = (ForChunks, ForK)
        case LoadBlockScales() if stmt.block.startswith("next"):
            wanted = (ForChunks,)
    for outer in wanted:
        if outer not in inside:
            raise IRError(f"{type(stmt).__name__} of a chunk stands outside {outer.__name__}")


def _wait(stmt: Wait, tables: Tables) -> type | None:
    """The block that it stands in. It waits as its barrier counts phases."""
    per = tables["barriers"][stmt.barrier].per
    if stmt.per != per or bool(stmt.turn) != (per != "stage"):
        raise IRError(
            f"Wait per {stmt.per}, turn {stmt.turn!r}: {stmt.barrier} has phases per {per}"
        )
    if stmt.seen and stmt.per != "stage":
        raise IRError(f"Wait per {stmt.per} is never left out: Wait.seen is {stmt.seen!r}")
    return ForK if stmt.seen else ForTiles if stmt.per == "turn" else None


def _arrive(stmt: Arrive, tables: Tables) -> type | None:
    """The block that it stands in. Other CTAs are told only where there are some. Where warpgroups divide K blocks, the one before is so many back."""
    if stmt.lag not in tables["back"] and stmt.to != "copied":
        most = max(tables["back"])
        raise IRError(
            f"Arrive.lag is not from 0 to {most}: the ring is looked back into by {'one stage' if most == 1 else f'{most} stages'}"
        )
    if stmt.to == "cluster" and not tables["peers"]:
        raise IRError("Arrive to cluster: the kernel's clusters are of one CTA")
    return ForTiles if stmt.to == "next" else None


def _expect(stmt: ExpectTx, tables: Tables) -> None:
    """What is announced is what the barrier counts."""
    counted = tables["barriers"][stmt.barrier].tx_bytes
    if stmt.tx_bytes != counted:
        raise IRError(f"ExpectTx of {stmt.tx_bytes} bytes: {stmt.barrier} counts {counted}")


def _loaded(stmt: LoadBlockScales, tables: Tables) -> None:
    """As many scales as there are registers for."""
    room = tables["locals"][stmt.dst].count
    if stmt.count != room:
        raise IRError(f"LoadBlockScales of {stmt.count}: {stmt.dst} has {room} registers")


def _box(stmt: TmaLoad | TmaStore, tables: Tables) -> None:
    if tables["maps"][stmt.tensor_map].smem != stmt.smem:
        raise IRError(f"{stmt.tensor_map} describes boxes of another buffer than {stmt.smem}")
    if isinstance(stmt, TmaLoad) and bool(stmt.pages) != any(c.base == "page" for c in stmt.coords):
        raise IRError(f"TmaLoad of a page by {stmt.pages!r} is placed by {stmt.coords}")
    if isinstance(stmt, TmaLoad) and bool(stmt.mask and stmt.slice) != (stmt.to == "cluster"):
        raise IRError(f"TmaLoad to {stmt.to}: mask is {stmt.mask}, slice is {stmt.slice}")


def _known(
    field: str, name: str | None, table: Mapping[str, object], where: object, none: bool = False
) -> None:
    unset = name is None or (none and not name)
    if not unset and name not in table:
        raise IRError(
            f"{type(where).__name__}.{field} names {name!r}, which is not one of {sorted(table)}"
        )


def _unique(kernel: Kernel) -> None:
    names = [m.name for m in kernel.maps] + [p.name for p in kernel.params]
    names += [s.name for s in kernel.smem] + [b.name for b in kernel.barriers]
    names += [r.name for role in kernel.roles for r in role.locals]
    if len({*names}) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise IRError(f"{twice!r} is defined twice in {kernel.name}")
    ring = [s.stages for s in kernel.smem if s.ring]
    if len({*ring, *(b.stages for b in kernel.barriers if b.per == "stage")}) > 1:
        raise IRError("the buffers and barriers of one ring have different numbers of stages")


def _warpgroups(kernel: Kernel) -> None:
    taken = [w for r in kernel.roles for w in range(*r.warpgroups)]
    if sorted(taken) != list(range(len(taken))):
        raise IRError(f"the roles' warpgroups {taken} do not cover 0..{len(taken) - 1} once each")
