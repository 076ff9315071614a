"""Rows that come by index: each place gets the row that it is for. See values.py and placement.py."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import nodes as ir
from ..ir.indices import PARAMS, ROWS
from ..ir.rewrite import statements
from .reader import Held, Reader

THREADS, PIECE, LINE = (
    128,
    16,
    128,
)  # of a warpgroup; bytes of a copy; of a row, which a swizzle moves pieces in


def of_indices(r: Reader, s: ir.LoadIndices | ir.CopyRows) -> None:
    """A register has the indices of a tile's rows, and rows are copied by those of their own tile."""
    held = Held(what="indices of rows", tile=r.tile)
    if isinstance(s, ir.LoadIndices):
        r.registers[s.dst] = held
    else:
        r.want(s, s.indices, held)


def copied(kernel: ir.Kernel, s: ir.CopyRows, of: ir.Pointed, begins: str) -> Iterator[str]:
    """All rows of a stage, a K block of each, as wgmma will read them. begins: along K, where it counts from."""
    to = kernel.buffer(s.smem)
    if (to.row_bytes, to.swizzle) != (LINE, LINE):
        yield f"rows of {to.name} have {to.row_bytes} bytes, swizzled by {to.swizzle}"
    if (s.k.base, s.k.scale, s.k.offset, s.k.rank_step) != ("k", kernel.block.k, 0, 0):
        yield f"{s.tensor} is read along K at {s.k}"
    if s.k.start != begins:
        yield f"{s.tensor} starts along K at {s.k.start or 0}"
    known = [x for x in statements(kernel) if isinstance(x, ir.LoadIndices) and x.dst == s.indices]
    if [x.count for x in known] != [to.rows]:
        yield f"{s.indices} are of {[x.count for x in known]} rows, {to.name} has {to.rows}"
    if of.dtype is not to.dtype:
        yield f"{s.tensor} has elements of {of.dtype.name}, {to.name} of {to.dtype.name}"


def room(kernel: ir.Kernel, s: ir.LoadIndices) -> Iterator[str]:
    """As many registers as a thread has rows to know of; and the array of indices, and what they are of, are the launch's."""
    given = {p.name: p.ctype for p in kernel.params}
    if s.tensor != ROWS:
        yield f"the indices of rows are in {ROWS}, not in {s.tensor}"
    for p in PARAMS:
        if given.get(p.name) != p.ctype:
            yield f"the kernel is not given {p.ctype} {p.name}"
    held = sum(r.count for role in kernel.roles for r in role.locals if r.name == s.dst)
    if held != -(-s.count * LINE // (THREADS * PIECE)):
        yield f"{s.dst} has {held} registers for {s.count} rows"
