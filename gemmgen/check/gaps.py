"""P9 where D's columns have gaps: each box lies where its columns of the product are in D, and no gap lies in it.

That the boxes of a tile hold each of its columns once is for output.py, and that each tile is stored once for audit.py: so all
columns that are no gap's are written once, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from ..ir.heads import NO_GAPS, Heads, gaps_of
from ..ir.nodes import BulkRowStore, Kernel, StoreRows, StoreTail, TmaLoad, TmaStore
from ..ir.rewrite import statements
from .finding import Finding
from .properties import OUTPUT


def gaps(kernel: Kernel) -> Iterator[Finding]:
    """Statement by statement."""
    heads = gaps_of(kernel.maps)
    for s in statements(kernel):
        for text in _statement(kernel, s, heads):
            yield Finding(property=OUTPUT, message=f"{type(s).__name__}: {text}")


def _statement(kernel: Kernel, s: object, heads: Heads) -> Iterator[str]:
    match s:
        case TmaStore():
            inner, *others = s.coords
            if inner.heads != heads or any(c.heads != NO_GAPS for c in others):
                said = ", ".join(str(c.heads) for c in s.coords)
                yield f"is placed in heads of {said}, and D's are {heads}"
            elif heads.mid:
                yield from _boxes(kernel, s, heads)
        case TmaLoad() if any(c.heads != NO_GAPS for c in s.coords):
            yield "is placed in heads, which only D has"
        case BulkRowStore() | StoreRows() | StoreTail() if heads.mid:
            yield f"knows no gaps, and D's heads are {heads}"


def _boxes(kernel: Kernel, s: TmaStore, heads: Heads) -> Iterator[str]:
    """Of every tile until heads begin where tiles do again. Where in D columns lie grows with them: a box whose first and last ones are
    where they belong holds no gap."""
    d, width = kernel.buffer(s.smem), (kernel.map(s.tensor_map).box or (0, 0))[0]
    for warpgroup in range(kernel.consumers):
        _, left = d.corner(s.wave * kernel.consumers + warpgroup)
        for tile in range(0, lcm(kernel.block.d_n, heads.side), kernel.block.d_n):
            first = tile + left + s.coords[0].offset
            at = s.coords[0].heads.column(first)
            for column, to in ((first, at), (first + width - 1, at + width - 1)):
                if to != (wanted := _place(heads, column)):
                    yield f"column {column} is stored in D's column {to}, not in {wanted}"
                    return


def _place(heads: Heads, column: int) -> int:
    """In D: by the head, and whether its left columns are before it."""
    head, inside = divmod(column, heads.left + heads.right)
    whole = heads.left + heads.mid + heads.right
    return head * whole + inside + heads.mid * (inside >= heads.left)
