"""Where groups end inside tiles, do not multiply 64 rows that lie past the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from ..ir.nodes import (
    Accumulate,
    ForK,
    IfRows,
    Kernel,
    LoadRowScales,
    Mma,
    Promote,
    PromoteColumns,
    Stmt,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)
from ..ir.rewrite import map_stmts
from ..target import Target


def skip_rows(kernel: Kernel, target: Target) -> Kernel:
    """If groups are ragged and nobody asked not to, put what a K loop does for one wave, barriers aside, into IfRows. (Where
    waves divide D's columns, all of them have the tile's few rows, and nothing is skipped.)

    Each wave gets a commit group of its own: with the branch inside a group, ptxas closes the group
    twice, and a wait for all but one leaves nothing in flight. The first wave comes last, for its
    rows are there if any are, so what a wait may leave in flight is the same however many waves run.
    """
    ragged = kernel.groups.ragged and kernel.groups.skips
    if not ragged or kernel.buffer("smem_d").along == "n":
        return kernel
    return map_stmts(kernel, lambda s: _skipping(s) if isinstance(s, ForK) else s)


def _skipping(loop: ForK) -> ForK:
    out: list[Stmt] = []
    for wave, run in groupby(_owned(loop.body), key=lambda pair: pair[0]):
        body = tuple(s for _, s in run)
        out.extend(body if wave is None else (IfRows(wave=wave, body=body),))
    return replace(loop, body=tuple(out))


def _owned(body: tuple[Stmt, ...]) -> Iterator[tuple[int | None, Stmt]]:
    """Every statement and the one wave it works for, commit groups split by wave."""
    group: list[Mma] = []
    product: dict[str, int] = {}  # the wave whose product a register array holds
    for s in body:
        match s:
            case WgmmaFence():
                group = []
            case Mma():
                group.append(s)
                product[s.dst] = s.wave
            case WgmmaCommit():
                for mma in sorted(group, key=lambda m: -m.wave):
                    yield from ((mma.wave, x) for x in (WgmmaFence(), mma, s))
            case WgmmaWait():
                yield group[0].wave if len(group) == 1 and not s.pending else None, s
            case LoadRowScales():
                yield s.wave, s
            case Promote() | PromoteColumns() | Accumulate():
                yield product[s.src], s
            case _:
                yield None, s
