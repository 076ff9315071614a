"""Which fields of statements may stand beside each other: see verify.py."""

from __future__ import annotations

from typing import Any

from ..errors import IRError
from .blocks import of_run
from .expr import arguments
from .nodes import Evaluate, ForK, ForTiles, LoadFragments, Promote, StoreValues, Sync
from .promotion import READS

Tables = dict[str, dict[str, Any]]


def runs(stmt: Any) -> None:
    """A run's tiles are taken right inside of runs, and once."""
    wanted = isinstance(stmt, ForTiles) and stmt.of == "runs"
    held = [s for s in stmt.body if of_run(s)]
    if len(held) != wanted:
        of = f" of {stmt.of}" if isinstance(stmt, ForTiles) else ""
        raise IRError(f"{type(stmt).__name__}{of} holds {len(held)} ForTiles of a run")


def fragments(stmt: LoadFragments) -> type:
    """The block that it stands in. What is copied has a place and no registers, what is read has both."""
    if (bool(stmt.dst), bool(stmt.smem)) != (stmt.by != "copy", stmt.by != "load"):
        at = f"dst is {stmt.dst!r}, smem is {stmt.smem!r}"
        raise IRError(f"LoadFragments by {stmt.by}: {at}")
    return ForK if stmt.block == "next" else ForTiles


def promoted_by(stmt: Promote) -> None:
    """It names the scales that it promotes by, and no others."""
    for name in ("row_scales", "column_scales", "block_scales"):
        if bool(getattr(stmt, name)) != (name in READS[stmt.by]):
            raise IRError(
                f"Promote.{name} is {getattr(stmt, name)!r}, and by {stmt.by} it reads {READS[stmt.by]}"
            )


def met(stmt: Sync, tables: Tables) -> None:
    """Named barriers are for warpgroups. Who awaits a cluster notes that; there is one."""
    if bool(stmt.met) != (stmt.of == "cluster_await"):
        raise IRError(f"Sync of {stmt.of} notes it in {stmt.met!r}")
    if stmt.of.startswith("cluster") and not tables["peers"]:
        raise IRError(f"Sync of {stmt.of}: the kernel's clusters are of one CTA")
    named = stmt.of in ("warpgroup", "consumers")
    if bool(stmt.warpgroups) != named or (stmt.first_id and not named):
        at = f"first_id is {stmt.first_id}, warpgroups is {stmt.warpgroups}"
        raise IRError(f"Sync of {stmt.of}: {at}")


def valued(stmt: Evaluate | StoreValues, tables: Tables) -> None:
    """There is a value of something, but of an argument or outside of windows; what is held of it has registers."""
    if bool(stmt.src) == (stmt.of in ("argument", "outside")):
        raise IRError(f"{type(stmt).__name__} of {stmt.of}: src is {stmt.src!r}")
    named = {x.name for x in arguments(stmt.value)}
    for name, registers in stmt.held:
        if name not in named or registers not in tables["locals"]:
            raise IRError(f"{type(stmt).__name__} holds {name!r} in {registers!r}")
