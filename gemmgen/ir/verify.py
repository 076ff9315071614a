"""Well-formedness of the IR: every name refers to something, every statement stands where it may."""

from __future__ import annotations

from ..errors import IRError
from .blocks import BLOCKS
from .nodes import (
    AfterFirst,
    ForChunks,
    ForK,
    ForKPerSplit,
    ForTiles,
    IfBlocks,
    IfFinishes,
    Kernel,
    NewGroup,
    NextTurn,
    Role,
    ShareScales,
    Stmt,
    TakeShare,
    TmaLoad,
    TmaLoadMulticast,
    TmaStore,
)
from .rewrite import walk

REGISTER_FIELDS = (
    *("dst", "src", "row_scales", "block_scales", "column_scales"),
    *("amax", "turn"),
)
OUTER = {
    ForK: ForTiles,
    ForKPerSplit: ForTiles,
    AfterFirst: ForK,
    ForChunks: ForTiles,
    ShareScales: ForChunks,
    NewGroup: ForTiles,
    IfBlocks: ForTiles,
    IfFinishes: ForTiles,
    TakeShare: ForTiles,
    NextTurn: ForTiles,
}


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
    if len({*ring, *(b.stages for b in kernel.barriers if b.per == "stage")}) > 1:
        raise IRError("the buffers and barriers of one ring have different numbers of stages")


def _registers(role: Role) -> None:
    names = {r.name for r in role.locals}
    for stmt in walk(role.body):
        for field in REGISTER_FIELDS:
            _known(field, getattr(stmt, field, None), names, stmt)


def _nesting(body: tuple[Stmt, ...], inside: tuple[type[Stmt], ...]) -> None:
    for stmt in body:
        needs = OUTER.get(type(stmt))
        if needs and not any(issubclass(t, needs) for t in inside):
            raise IRError(f"{type(stmt).__name__} stands outside {needs.__name__}")
        if isinstance(stmt, ForTiles | ForK) and type(stmt) in inside:
            raise IRError(f"{type(stmt).__name__} stands inside another")
        if isinstance(stmt, ForK) and (stmt.of == "chunk") != (ForChunks in inside):
            raise IRError(
                f"a ForK of a {stmt.of} stands {'in' if stmt.of == 'tile' else 'out'}side ForChunks"
            )
        if isinstance(stmt, BLOCKS):
            _nesting(stmt.body, (*inside, type(stmt)))


def _warpgroups(kernel: Kernel) -> None:
    taken = [w for r in kernel.roles for w in range(*r.warpgroups)]
    if sorted(taken) != list(range(len(taken))):
        raise IRError(f"the roles' warpgroups {taken} do not cover 0..{len(taken) - 1} once each")
