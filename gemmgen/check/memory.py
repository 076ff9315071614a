"""Cells: the largest pieces of shared memory that no access of a kernel tells apart.

A cell stands for all bytes that are touched by exactly the same accesses, so that what holds for
one byte of it holds for all: races are looked for per cell, not per byte.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from ..ir.nodes import Kernel
from ..ir.rewrite import walk
from ..ir.stmts import multicasts
from .footprint import ACCESSES, WORKSPACE, Access, Span, Spans, slice_spans, spans, start
from .ops import Agent

Key = tuple[int, int, int]  # id of the statement, index of the agent, stage


@dataclass(frozen=True, kw_only=True)
class Memory:
    """`cells[key]` are the cells, of one CTA, that a statement touches; CTA c's are c * len(names) on. sums: those of a slot in
    global memory."""

    names: tuple[str, ...]
    sums: tuple[int, ...]
    cells: dict[Key, tuple[int, ...]]


def plan_memory(kernel: Kernel, agents: tuple[Agent, ...]) -> Memory:
    """Cut shared memory where any access of any agent, in any stage, begins or ends."""
    touched: dict[Key, Spans] = {}
    for i, agent in enumerate(agents):
        body = next(r.body for r in kernel.roles if r.name == agent.role)
        for stmt in walk(body):
            if isinstance(stmt, ACCESSES):
                for stage in range(kernel.stages):
                    touched[id(stmt), i, stage] = _spans(kernel, stmt, agent, stage)
    pieces, of = _cells(dict.fromkeys(touched.values()))
    names = tuple(_name(kernel, piece) for piece in pieces)
    sums = tuple(i for i, piece in enumerate(pieces) if piece[0] >= WORKSPACE)
    return Memory(names=names, sums=sums, cells={key: of[found] for key, found in touched.items()})


def _spans(kernel: Kernel, stmt: Access, agent: Agent, stage: int) -> Spans:
    if multicasts(stmt):
        return slice_spans(kernel, stmt, agent, stage)
    return spans(kernel, stmt, agent, stage)


def _cells(footprints: Iterable[Spans]) -> tuple[list[Span], dict[Spans, tuple[int, ...]]]:
    """One representative piece per cell, and the cells of each footprint."""
    every = list(footprints)
    cuts = sorted({edge for found in every for span in found for edge in span})
    users: list[list[int]] = [[] for _ in cuts]  # of the piece from a cut to the next
    for f, found in enumerate(every):
        for lo, hi in found:
            for piece in range(bisect_left(cuts, lo), bisect_left(cuts, hi)):
                users[piece].append(f)
    cell: dict[tuple[int, ...], int] = {}
    pieces: list[Span] = []
    out: list[list[int]] = [[] for _ in every]
    for piece, who in enumerate(users):
        signature = tuple(who)
        if who and signature not in cell:
            cell[signature] = len(pieces)
            pieces.append((cuts[piece], cuts[piece + 1]))
            for f in who:
                out[f].append(cell[signature])
    return pieces, {found: tuple(out[f]) for f, found in enumerate(every)}


def _name(kernel: Kernel, piece: Span) -> str:
    for s in kernel.smem:
        index, byte = divmod(piece[0] - start(s), s.stage_bytes)
        if 0 <= index < s.copies * s.stages:
            unit = {"output": "block", "partials": "slot"}.get(s.use, "stage")
            return f"{s.name} {unit} {index}, byte {byte} on"
    if piece[0] >= WORKSPACE:
        return f"slot for sums, byte {piece[0] - WORKSPACE} on"
    return f"byte {piece[0]} on"
