"""Reductions over the lanes of a warp: redux.sync of integers (PTX ISA, "redux.sync")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .control import members
from .errors import UnsupportedInstruction
from .fiber import WARP
from .group import Group
from .program import Handler, Op, Scope
from .syntax import Instruction

ORDERED: dict[str, Callable[..., Any]] = {"max": np.max, "min": np.min, "add": np.sum}
BITWISE: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce,
    "xor": np.bitwise_xor.reduce,
}
OF = {"u32": ORDERED, "s32": ORDERED, "b32": BITWISE}
KINDS = {"u32": np.uint32, "s32": np.int32, "b32": np.uint32}


def _redux(i: Instruction, s: Scope) -> Op:
    """All lanes of the member mask must take part, each of which gets the result."""
    operation, kind = i.parts[2], i.parts[-1]
    reduce = OF.get(kind, {}).get(operation)
    if reduce is None:
        raise UnsupportedInstruction(f"{i.opcode}: not emulated")
    d, a, member = (
        s.dst(i.operands[0], kind),
        s.src(i.operands[1], kind),
        s.src(i.operands[2], "u32"),
    )

    def op(g: Group) -> int | None:
        if (waiting := g.collect(need=members(g, g.R[member]))) is not None:
            return waiting
        found = np.zeros(g.lanes, KINDS[kind])
        for warp in range(g.warps):
            here = slice(warp * WARP, (warp + 1) * WARP)
            active = g.active[here]
            if active.any():
                values = g.R[a][here][active].astype(KINDS[kind])
                found[here] = reduce(values).astype(KINDS[kind])
        np.copyto(g.R[d], found, where=g.where)
        return None

    return op


HANDLERS: Mapping[str, Handler] = {"redux": _redux}
