"""Where the scales of a K block lie in a stage, and which lane reads which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..ir.nodes import Kernel, LoadColumnScales, LoadRowScales, Smem
from ..ir.rewrite import statements
from .banks import Addresses, Banks, count
from .sharing import sharing

WARP, WARPS, WARP_ROWS = 32, 4, 16
ROWS = 64  # of a wgmma


@dataclass(frozen=True, kw_only=True, eq=False)
class ScaleRead:
    """One load of one warp. register: of the array `array`, the first loaded. line: int [lanes], the row (or
    column) of the tile whose scale each lane reads first, along M of scale A and N of scale B. where: its
    address in ring stage 0. size: bytes per lane."""

    smem: Smem
    array: str
    register: int
    wave: int | None
    warpgroup: int | None
    warp: int | None
    line: Addresses
    where: Addresses
    size: int

    @property
    def banks(self) -> Banks:
        return count([self.where], self.size)


def scale_reads(kernel: Kernel) -> tuple[ScaleRead, ...]:
    """Of a lowered kernel; empty where it has no scales in shared memory. Reads of columns are the same in
    every warp."""
    found: list[ScaleRead] = []
    for s in dict.fromkeys(statements(kernel)):
        if isinstance(s, LoadRowScales):
            found += _rows(kernel, s)
        elif isinstance(s, LoadColumnScales):
            found += _columns(kernel, s)
    return tuple(found)


def _rows(kernel: Kernel, s: LoadRowScales) -> Iterator[ScaleRead]:
    """Two per thread: the rows of the accumulator that it holds, 8 apart."""
    smem, lane = kernel.buffer(s.smem), np.arange(WARP)
    for number, warpgroup in sharing(kernel):
        for warp in range(WARPS):
            for half in (0, 1):
                block = s.wave * kernel.consumers + number
                line = block * ROWS + warp * WARP_ROWS + lane // 4 + 8 * half
                yield ScaleRead(
                    smem=smem,
                    array=s.dst,
                    register=half,
                    wave=s.wave,
                    warpgroup=warpgroup,
                    warp=warp,
                    line=line,
                    where=(smem.offset or 0) + line * smem.dtype.bytes,
                    size=smem.dtype.bytes,
                )


def _columns(kernel: Kernel, s: LoadColumnScales) -> Iterator[ScaleRead]:
    """Pairs: of every 8 columns the two that the thread holds."""
    smem, lane = kernel.buffer(s.smem), np.arange(WARP)
    registers = {r.name: r.count for role in kernel.roles for r in role.locals}[s.dst]
    for register in range(0, registers, 2):
        line = 4 * (s.part * registers + register) + lane % 4 * 2
        yield ScaleRead(
            smem=smem,
            array=s.dst,
            register=register,
            wave=None,
            warpgroup=None,
            warp=None,
            line=line,
            where=(smem.offset or 0) + line * smem.dtype.bytes,
            size=2 * smem.dtype.bytes,
        )
