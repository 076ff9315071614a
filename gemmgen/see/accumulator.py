"""Which element of the product's tile each register of each thread holds."""

from __future__ import annotations

from dataclasses import dataclass

from ..emulator.products import ROWS, fragment
from ..ir.nodes import Evaluate, Kernel, StageTile
from ..ir.rewrite import statements
from .banks import Addresses
from .sharing import sharing


@dataclass(frozen=True, kw_only=True, eq=False)
class Fragment:
    """One array of one warpgroup: `count` registers per thread. row, column: int [count, 128], of the
    product's tile, by register and thread; parts follow each other. warpgroup: None if each has a tile, or all of its rows, of its own."""

    array: str
    wave: int
    warpgroup: int | None
    row: Addresses
    column: Addresses

    @property
    def count(self) -> int:
        return int(self.row.shape[0])


def fragments(kernel: Kernel) -> tuple[Fragment, ...]:
    """The accumulators of a lowered kernel, by wave and warpgroup. With swap_ab the rows of wgmma
    are the tile's columns."""
    swapped = kernel.buffer("smem_d").along == "n"
    sizes = {r.name: r.count for role in kernel.roles for r in role.locals}
    found = []
    for wave, array in _accumulators(kernel).items():
        row, column = fragment(sizes[array])
        for number, warpgroup in sharing(kernel):
            shifted = row + (wave * kernel.consumers + number) * ROWS
            sides = (column, shifted) if swapped else (shifted, column)
            found.append(
                Fragment(array=array, wave=wave, warpgroup=warpgroup, row=sides[0], column=sides[1])
            )
    return tuple(found)


def _accumulators(kernel: Kernel) -> dict[int, str]:
    """By wave: what the epilogue begins with."""
    evaluated = {s.wave: s.src for s in statements(kernel) if isinstance(s, Evaluate) and s.src}
    staged = {s.wave: s.src for s in statements(kernel) if isinstance(s, StageTile)}
    return evaluated or staged
