"""Refuse a kernel in which some pass left a field unset."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..errors import IRError
from ..ir.nodes import Kernel, Stmt, StoreTile
from ..ir.rewrite import statements
from ..target import Target

LOWERED = (StoreTile,)  # statements that only exist before choose_stores


def check_complete(kernel: Kernel, target: Target) -> Kernel:
    """Every resource and statement field is set, every abstract statement is spelled. Changes nothing."""
    tables = (*kernel.maps, *kernel.smem, *kernel.barriers, *kernel.roles)
    nodes: tuple[Any, ...] = (kernel, *tables, *statements(kernel))
    for node in nodes:
        if isinstance(node, Stmt) and type(node) in LOWERED:
            raise IRError(f"{type(node).__name__} was not lowered by choose_stores")
        for f in fields(node):
            if getattr(node, f.name) is None:
                raise IRError(
                    f"{type(node).__name__}.{f.name} is unset after the last pass: {node}"
                )
    return kernel
