"""The ways to walk and rebuild statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from .blocks import BLOCKS, HOLDING, Parts, Stmt
from .nodes import Kernel, Role
from .stamps import STAMPS


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement of `body`, parents before children, in program order; of parts those that they hold."""
    for stmt in body:
        if not isinstance(stmt, Parts):
            yield stmt
        if isinstance(stmt, HOLDING):
            yield from walk(stmt.body)


def statements(kernel: Kernel) -> Iterator[Stmt]:
    """Every statement of the prologue and of each role."""
    yield from walk(kernel.prologue)
    for role in kernel.roles:
        yield from walk(role.body)


Rewrite = Callable[[Stmt], Stmt | tuple[Stmt, ...]]


def map_body(body: tuple[Stmt, ...], fn: Rewrite) -> tuple[Stmt, ...]:
    """`body` rebuilt bottom-up with every statement replaced by `fn(statement)`, one or several."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, BLOCKS):
            stmt = replace(stmt, body=map_body(stmt.body, fn))
        elif isinstance(stmt, Parts):
            parts = {f.name: map_body(getattr(stmt, f.name), fn) for f in fields(stmt)}
            stmt = replace(stmt, **parts)
        new = fn(stmt)
        out.extend(new if isinstance(new, tuple) else (new,))
    return tuple(out)


def map_stmts(kernel: Kernel, fn: Rewrite) -> Kernel:
    """`kernel` with `map_body` applied to the prologue and to every role."""
    roles = tuple(replace(r, body=map_body(r.body, fn)) for r in kernel.roles)
    return replace(kernel, prologue=map_body(kernel.prologue, fn), roles=roles)


def map_role(kernel: Kernel, name: str, fn: Callable[[Role], Role]) -> Kernel:
    """Rebuild `kernel` with the role called `name` replaced by `fn(role)`."""
    return replace(kernel, roles=tuple(fn(r) if r.name == name else r for r in kernel.roles))


def unstamped(kernel: Kernel) -> Kernel:
    """`kernel` without its stamps: what instrument was given."""
    if not kernel.stamps:
        return kernel
    plain = map_stmts(kernel, lambda s: () if isinstance(s, STAMPS) else s)
    params = tuple(p for p in kernel.params if p.name != "stamp_rings")
    code = tuple(name for name in kernel.device_code if name != "stamps")
    return replace(plain, params=params, device_code=code, stamps=0)
