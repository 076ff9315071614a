"""Refuse a kernel in which some pass left a field unset."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..errors import IRError
from ..ir.blocks import Parts, Piece, TileBody
from ..ir.nodes import Kernel, Stmt, StoreTile
from ..ir.rewrite import map_stmts, statements
from ..target import Target

# What only exists before a pass.
LOWERED: dict[type[Stmt], str] = {
    StoreTile: "choose_stores",
    **dict.fromkeys((Parts, TileBody, Piece), "join_parts"),
}


def check_complete(kernel: Kernel, target: Target) -> Kernel:
    """Every resource and statement field is set, every abstract statement is spelled. Changes nothing."""
    tables = (*kernel.maps, *kernel.smem, *kernel.barriers, *kernel.roles)
    nodes: tuple[Any, ...] = (kernel, *tables, *statements(kernel))
    map_stmts(kernel, _lowered)
    for node in nodes:
        for f in fields(node):
            if getattr(node, f.name) is None:
                raise IRError(
                    f"{type(node).__name__}.{f.name} is unset after the last pass: {node}"
                )
    return kernel


def _lowered(s: Stmt) -> Stmt:
    if type(s) in LOWERED:
        raise IRError(f"{type(s).__name__} was not lowered by {LOWERED[type(s)]}")
    return s
