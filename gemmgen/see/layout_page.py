"""What lies where, as pages: an operand, the accumulator, D's tile, the scales."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ArgumentError
from ..ir.nodes import Kernel, Smem
from .accumulator import Fragment, fragments
from .banks import bank, total
from .operand_page import operand_page
from .output_page import output_page
from .packed_page import form, packed_page
from .page import Block, Cell, Facts, Grid, Page, Table
from .pictures import PIECES, ROWS, buffer, conflicts
from .scales import ScaleRead, scale_reads


def layout(kernel: Kernel, what: str) -> Page:
    """what: one of VIEWS. `kernel` is lowered. Raises ArgumentError for another, and for the scales of a
    kernel that has none in shared memory."""
    if what not in VIEWS:
        raise ArgumentError("what", what, f"must be one of {', '.join(VIEWS)}")
    return VIEWS[what](kernel)


def _accumulator(kernel: Kernel) -> Page:
    found = fragments(kernel)
    rows = tuple(
        (
            f.array,
            str(f.wave),
            "each" if f.warpgroup is None else str(f.warpgroup),
            str(f.count),
            f"{f.row.min()}-{f.row.max()}",
            f"{f.column.min()}-{f.column.max()}",
        )
        for f in found
    )
    columns = ("array", "wave", "warpgroup", "registers", "rows", "columns")
    table = Table(title="Which part of the product's tile", columns=columns, rows=rows)
    return Page(title=f"Accumulator of {kernel.name}", blocks=(table, _fragment(found[0])))


def _fragment(f: Fragment) -> Grid:
    """The tile's first corner: who holds each element."""
    held = {
        (int(f.row[i, t]), int(f.column[i, t])): (t, i)
        for t in range(f.row.shape[1])
        for i in range(f.count)
        if f.row[i, t] < ROWS and f.column[i, t] < PIECES
    }

    def cell(row: int, column: int) -> Cell:
        thread, register = held[row, column]
        tip = f"row {row}, column {column}: thread {thread}, {f.array}[{register}]"
        return Cell(label=f"T{thread} {register}", hue=thread % 4, tip=tip)

    rows, columns = (sorted({key[side] for key in held}) for side in (0, 1))
    whose = "each warpgroup, in its own tile" if f.warpgroup is None else f"warpgroup {f.warpgroup}"
    return Grid(
        title=f"The first {len(rows)} rows and {len(columns)} columns: thread and register",
        columns=tuple(f"n{c}" for c in columns),
        rows=tuple(f"m{r}" for r in rows),
        cells=tuple(tuple(cell(r, c) for c in columns) for r in rows),
        note=f"Of {whose}. The colour is the thread's place in its quad. Along wgmma's N the pattern "
        "repeats every 8, 4 registers on; along its M the next warp has the next 16.",
    )


def _scales(kernel: Kernel) -> Page:
    reads = scale_reads(kernel)
    if not reads:
        raise ArgumentError("scales", kernel.name, "must be a kernel with scales in shared memory")
    buffers = dict.fromkeys(r.smem for r in reads)
    facts = tuple(Facts(title=f"Buffer {s.name}", items=buffer(s)) for s in buffers)
    rows = [(_whose(s, reads), total(r.banks for r in reads if r.smem == s)) for s in buffers]
    note = "Lanes that read the same word share it."
    grids = tuple(_lanes(kernel, next(r for r in reads if r.smem == s)) for s in buffers)
    table = conflicts("Bank conflicts, per K block", rows, note)
    blocks: tuple[Block, ...] = (*facts, *grids, table)
    return Page(title=f"Scales of {kernel.name}", blocks=blocks)


def _whose(s: Smem, reads: tuple[ScaleRead, ...]) -> str:
    size = next(r.size for r in reads if r.smem == s)
    return f"{s.name}: ld.shared of {size} bytes per lane"


def _lanes(kernel: Kernel, r: ScaleRead) -> Grid:
    axis = next(m.inner for m in kernel.maps if m.smem == r.smem.name)
    width = 8

    def cell(lane: int) -> Cell:
        line, at = int(r.line[lane]), int(r.where[lane])
        tip = f"lane {lane}: {r.array}[{r.register}] from address {at}"
        return Cell(label=f"{axis}{line} b{bank(at)}", hue=lane % 4, tip=tip)

    rows = range(0, len(r.line), width)
    return Grid(
        title=f"{r.smem.name}: what each lane of warp 0 reads first into {r.array}, and its bank",
        columns=tuple(f"+{i}" for i in range(width)),
        rows=tuple(f"lane {first}" for first in rows),
        cells=tuple(tuple(cell(lane) for lane in range(first, first + width)) for first in rows),
    )


def _b(kernel: Kernel) -> Page:
    packed = form(kernel)
    return packed_page(kernel, packed) if packed else operand_page(kernel, "b")


def views(kernel: Kernel) -> tuple[str, ...]:
    """Those of VIEWS that there are of `kernel`."""
    has = {"A": kernel.ring, "B": kernel.ring, "D": not kernel.unstaged}
    has |= {"scales": bool(scale_reads(kernel))}
    return tuple(what for what in VIEWS if has.get(what, True))


VIEWS: dict[str, Callable[[Kernel], Page]] = {
    "A": lambda kernel: operand_page(kernel, "a"),
    "B": _b,
    "acc": _accumulator,
    "D": output_page,
    "scales": _scales,
}
