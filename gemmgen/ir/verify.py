"""Well-formedness of the IR: every name refers to something, every statement stands where it may."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import IRError
from .blocks import BLOCKS
from .nodes import (
    Accumulate,
    AfterFirst,
    Evaluate,
    ForK,
    ForTiles,
    IfBlocks,
    IfRows,
    Kernel,
    LoadRowScales,
    Mma,
    NewGroup,
    Promote,
    PromoteColumns,
    Role,
    StageTile,
    Stmt,
    TmaLoad,
    TmaLoadMulticast,
    TmaStore,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)
from .rewrite import walk

REGISTER_FIELDS = ("dst", "src", "row_scales", "block_scales", "column_scales", "amax")
OUTER = {
    ForK: ForTiles,
    AfterFirst: ForK,
    IfRows: ForK,
    NewGroup: ForTiles,
    IfBlocks: ForTiles,
}
WGMMA = {WgmmaFence: "f", Mma: "m", WgmmaCommit: "c", WgmmaWait: "w"}
# Reads shared memory, works on registers.
ROW_WORK = (LoadRowScales, Promote, PromoteColumns, Accumulate, *WGMMA)


def verify(kernel: Kernel) -> Kernel:
    """Return `kernel` if it is well formed, raise IRError naming the offender if not."""
    _unique(kernel)
    smem = {s.name for s in kernel.smem}
    barriers = {b.name for b in kernel.barriers}
    maps = {m.name: m for m in kernel.maps}
    params = {p.name for p in kernel.params}
    for m in kernel.maps:
        _known("smem", m.smem, smem, m)
    for stmts in (kernel.prologue, *(r.body for r in kernel.roles)):
        for stmt in walk(stmts):
            _known("barrier", getattr(stmt, "barrier", None), barriers, stmt)
            _known("tensor_map", getattr(stmt, "tensor_map", None), set(maps), stmt)
            for field in ("smem", "a", "b"):
                _known(field, getattr(stmt, field, None), smem, stmt)
            _known("tensor", getattr(stmt, "tensor", None), params, stmt)
            _counts(stmt)
            if (
                isinstance(stmt, TmaLoad | TmaLoadMulticast | TmaStore)
                and maps[stmt.tensor_map].smem != stmt.smem
            ):
                raise IRError(
                    f"{stmt.tensor_map} describes boxes of another buffer than {stmt.smem}"
                )
    for role in kernel.roles:
        _registers(role)
        _nesting(role.body, ())
        _rows(role)
    _warpgroups(kernel)
    return kernel


def _known(field: str, name: str | None, names: set[str], where: object) -> None:
    if name is not None and name not in names:
        raise IRError(
            f"{type(where).__name__}.{field} names {name!r}, which is not one of {sorted(names)}"
        )


def _counts(stmt: Stmt) -> None:
    """A wait leaves no fewer than no groups; the ring is looked back into by at most one stage."""
    if getattr(stmt, "pending", 0) < 0:
        raise IRError(f"{type(stmt).__name__}.pending is negative")
    for field in ("lag", "flip"):
        if getattr(stmt, field, 0) not in (0, 1):
            raise IRError(f"{type(stmt).__name__}.{field} is neither 0 nor 1")


def _unique(kernel: Kernel) -> None:
    names = [m.name for m in kernel.maps] + [p.name for p in kernel.params]
    names += [s.name for s in kernel.smem] + [b.name for b in kernel.barriers]
    names += [r.name for role in kernel.roles for r in role.locals]
    for name in names:
        if names.count(name) > 1:
            raise IRError(f"{name!r} is defined twice in {kernel.name}")
    ring = [s.stages for s in kernel.smem if s.ring]
    if len({*ring, *(b.stages for b in kernel.barriers)}) > 1:
        raise IRError("the buffers and barriers of one ring have different numbers of stages")


def _registers(role: Role) -> None:
    names = {r.name for r in role.locals}
    for stmt in walk(role.body):
        for field in REGISTER_FIELDS:
            _known(field, getattr(stmt, field, None), names, stmt)


def _nesting(body: tuple[Stmt, ...], inside: tuple[type[Stmt], ...]) -> None:
    for stmt in body:
        needs = OUTER.get(type(stmt))
        if needs and needs not in inside:
            raise IRError(f"{type(stmt).__name__} stands outside {needs.__name__}")
        if isinstance(stmt, ForTiles | ForK) and type(stmt) in inside:
            raise IRError(f"{type(stmt).__name__} stands inside another")
        if isinstance(stmt, BLOCKS):
            _nesting(stmt.body, (*inside, type(stmt)))


def _rows(role: Role) -> None:
    """An IfRows works for its own wave only, and neither arrives, waits on an mbarrier nor stores."""
    staged = {s.src: s.wave for s in walk(role.body) if isinstance(s, StageTile | Evaluate)}
    for block in (s for s in walk(role.body) if isinstance(s, IfRows)):
        for stmt in block.body:
            if not isinstance(stmt, ROW_WORK):
                raise IRError(f"{type(stmt).__name__} must not stand in IfRows")
            of = staged.get(getattr(stmt, "dst", ""), block.wave)
            if {of, getattr(stmt, "wave", of)} != {block.wave}:
                raise IRError(f"{type(stmt).__name__} in IfRows is not of wave {block.wave}")
    _groups(list(_unbranched(role.body)))


def _groups(body: list[Stmt]) -> None:
    """Whatever IfRows leave out, no more wgmma are in flight than when they leave out nothing.

    Either each IfRows waits for its own groups, or each closes its own and all waits stand outside;
    one that leaves a group in flight then follows wave 0, which is there if any wave is.
    """
    shape = {i: _wgmma(s.body) for i, s in enumerate(body) if isinstance(s, IfRows)}
    shape = {i: text for i, text in shape.items() if text}
    if shape and any(isinstance(s, Mma) for s in body):
        raise IRError("Mma stands outside IfRows, others inside")
    if all(re.fullmatch("(fm+cw)+", text) for text in shape.values()):
        return
    if not all(re.fullmatch("(fm+c)+", text) for text in shape.values()):
        raise IRError("IfRows must hold whole groups of wgmma, and wait for all of them or none")
    for i, stmt in enumerate(body):
        pending = stmt.pending if isinstance(stmt, WgmmaWait) else 0
        last = max((j for j in shape if j < i), default=None)
        if pending > 1 or (pending and (last is None or body[last].wave != 0)):  # type: ignore[attr-defined]
            raise IRError(f"WgmmaWait.pending={pending} may leave another wave's group in flight")


def _wgmma(body: tuple[Stmt, ...]) -> str:
    """Its wgmma statements in letters; a wait that leaves a group in flight is none of them."""
    kinds = (WGMMA.get(type(s), "") + "?" * getattr(s, "pending", 0) for s in body)
    return "".join(kinds)


def _unbranched(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement that stands in no IfRows, and the IfRows."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, BLOCKS) and not isinstance(stmt, IfRows):
            yield from _unbranched(stmt.body)


def _warpgroups(kernel: Kernel) -> None:
    taken = [w for r in kernel.roles for w in range(*r.warpgroups)]
    if sorted(taken) != list(range(len(taken))):
        raise IRError(f"the roles' warpgroups {taken} do not cover 0..{len(taken) - 1} once each")
