"""mma.sync: a warp's multiply-accumulate of operands in registers (PTX ISA, "Warp Level Matrix Instructions").

Its arithmetic is taken to be wgmma's of the same operands (`tensor_core`): sixteen products and what they are added to, at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from .errors import ProtocolError, UnsupportedInstruction
from .fiber import WARP
from .group import Group
from .lanes import per_warp, who
from .program import Handler, Op, Scope
from .syntax import Instruction, Operand, Vector
from .tensor_core import mma_block

ROWS, COLUMNS, DEPTH = 16, 8, 16
FORM = ("sync", "aligned", "m16n8k16", "row", "col", "f32")
TYPES = ("f16", "bf16")
LANE = np.arange(WARP)
HALVES = 2  # elements of a register


@lru_cache
def places(what: str) -> tuple[Any, Any]:
    """Row and column of each lane's elements, int [registers * elements, 32] each: of A [16, 16], of B^T [8, 16], of C and D [16, 8]."""
    row, pair = LANE // 4, 2 * (LANE % 4)
    if what == "c":
        return _grid(lambda r, _: (row + r // 2 * 8, pair + r % 2), 4, 1)
    if what == "a":
        return _grid(lambda r, e: (row + r % 2 * 8, pair + e + r // 2 * 8), 4, HALVES)
    return _grid(lambda r, e: (row, pair + e + r * 8), 2, HALVES)


def _grid(place: Any, registers: int, elements: int) -> tuple[Any, Any]:
    found = [place(r, e) for r in range(registers) for e in range(elements)]
    return np.stack([x for x, _ in found]), np.stack([x for _, x in found])


def _mma(i: Instruction, s: Scope) -> Op:
    kinds = i.parts[7:9]
    if (
        i.parts[1:7] != FORM
        or i.parts[9:] != ("f32",)
        or len({*kinds}) > 1
        or kinds[0] not in TYPES
    ):
        raise UnsupportedInstruction(str(i))
    d, a, b, c = (_items(x, n, i) for x, n in zip(i.operands, (4, 4, 2, 4), strict=True))
    reads = [s.src(x, "b32") for x in a], [s.src(x, "b32") for x in b]
    before = [s.src(x, "f32") for x in c]
    to = [s.dst(x, "f32") for x in d]

    def op(g: Group) -> int | None:
        if (waiting := g.collect(aligned=True)) is not None:
            return waiting
        for _, lanes in per_warp(g):
            if lanes.size != WARP:
                raise ProtocolError(f"{who(g)}: takes all 32 threads of a warp")
            x, y = (_codes(g, slots, lanes, what) for slots, what in zip(reads, "ab", strict=True))
            row, column = places("c")
            sums = np.empty((ROWS, COLUMNS), np.float32)
            sums[row, column] = np.stack([g.R[slot][lanes] for slot in before])
            values = mma_block(x, y, sums, kinds[0], kinds[1], 1)[row, column]
            for slot, value in zip(to, values, strict=True):
                g.R[slot][lanes] = value
        return None

    return op


def _items(operand: Operand, count: int, i: Instruction) -> tuple[Operand, ...]:
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise UnsupportedInstruction(f"{i}: {operand} are not {count} registers")
    return operand.items


def _codes(g: Group, slots: list[int], lanes: Any, what: str) -> Any:
    """uint16 [rows, 16], of registers of two elements each."""
    row, column = places(what)
    words = np.stack([g.R[slot][lanes] for slot in slots])  # [register, lane]
    pairs = np.ascontiguousarray(words).view(np.uint16).reshape(len(slots), WARP, HALVES)
    codes = np.empty((int(row.max()) + 1, DEPTH), np.uint16)
    codes[row, column] = pairs.transpose(0, 2, 1).reshape(-1, WARP)
    return codes


HANDLERS: Mapping[str, Handler] = {"mma": _mma}
