"""What is asked of the statements by which CTAs and GPUs exchange sums: see verify."""

from __future__ import annotations

from typing import Any

from ..errors import IRError
from .blocks import Stmt
from .dtypes import F32
from .exchange import PARTIALS
from .nodes import (
    AddPartials,
    Arrive,
    AwaitSignals,
    Epoch,
    ForTiles,
    Kernel,
    SendPartials,
    Signal,
    TakeShare,
)
from .rewrite import statements, walk

RANKS = ("ranks", "every_rank")  # through which sums go to other GPUs


def through(stmt: SendPartials | AddPartials, tables: dict[str, dict[str, Any]]) -> None:
    """By shared memory, the cluster's or the CTA's own, or by global memory, of this GPU or another."""
    barrier = getattr(stmt, "barrier", "")
    shared = stmt.through in ("cluster", "cta")
    arrives = stmt.through == "cluster" and isinstance(stmt, SendPartials)
    if (bool(stmt.smem), bool(barrier)) != (shared, arrives):
        at = f"smem is {stmt.smem!r}, barrier is {barrier!r}"
        raise IRError(f"{type(stmt).__name__} through {stmt.through}: {at}")
    if not shared and PARTIALS not in tables["params"]:
        raise IRError(f"{type(stmt).__name__} through {stmt.through}: the kernel has no workspace")
    acc = tables["locals"][stmt.src if isinstance(stmt, SendPartials) else stmt.dst]
    if stmt.through in tables["wire"] and (acc.dtype != F32 or acc.count % 4):
        raise IRError(f"{acc.name} is not of FP32 in fours: it cannot be rounded in pairs")


def signalled(stmt: Signal) -> type[Stmt] | None:
    """What it stands in: what is said of the running tile, in the loop over tiles. What says it at once notes nothing."""
    if bool(stmt.owed) != (stmt.by != "telling"):
        raise IRError(f"Signal {stmt.by} owes {stmt.owed!r}")
    return None if stmt.by in ("raising", "counting") else ForTiles


def noted(stmt: TakeShare) -> None:
    """A CTA of a cluster has its tile's share, and notes nothing; who sums several notes where each ends."""
    if bool(stmt.dst) != (stmt.of != "cluster"):
        raise IRError(f"TakeShare of {stmt.of} notes its end in {stmt.dst!r}")


def awaited(stmt: AwaitSignals) -> None:
    """Who waits for rows notes which it has seen."""
    if bool(stmt.seen) != (stmt.of == "rows"):
        raise IRError(f"AwaitSignals of {stmt.of} notes them in {stmt.seen!r}")


def numbered(kernel: Kernel) -> None:
    """Who signals names the epoch, which every thread has read before: once, in the prologue, and in none of its blocks."""
    names = any(isinstance(s, Signal | Epoch) for s in statements(kernel))
    reads = [s for s in statements(kernel) if isinstance(s, Epoch) and s.by == "reading"]
    first = [s for s in kernel.prologue if isinstance(s, Epoch) and s.by == "reading"]
    if names and (len(first), len(reads)) != (1, 1):
        where = f"{len(first)} times in the prologue, {len(reads)} times in all"
        raise IRError(f"the epoch is read {where}: it is once, there")
    if first and PARTIALS not in {p.name for p in kernel.params}:
        raise IRError("the epoch is read, and the kernel has no memory of its rank")


def kept(body: tuple[Stmt, ...]) -> None:
    """A sender's slot is released when the sums that were read there are used: a load of shared memory may be overtaken
    by what follows it, but for a store of what was loaded (ADR 0010)."""
    added = {s.dst for s in body if isinstance(s, AddPartials) and s.through == "cluster"}
    at = next((i for i, s in enumerate(body) if isinstance(s, Arrive) and s.to == "others"), None)
    if at is not None and any(getattr(s, "src", "") in added for s in walk(body[at:])):
        raise IRError(f"Arrive to others stands before {', '.join(sorted(added))} is used")
