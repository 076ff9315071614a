"""Where asked, stage D in pieces of some columns, double-buffered in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..errors import IllegalConfig, IRError, Rule
from ..ir.nodes import (
    AddPartials,
    Evaluate,
    Fence,
    If,
    Kernel,
    Smem,
    StageTile,
    Stmt,
    StoreCommit,
    StoreTail,
    StoreTile,
    StoreWait,
    TileBody,
)
from ..ir.rewrite import map_stmts, statements, walk
from ..ir.syncs import is_fence, is_sync
from ..target import Target

COLUMN_PIECES = Rule(
    id="column-pieces",
    says="d_columns must cut D's tile into whole swizzled slabs, an even number of pieces per consumer warpgroup",
    because="A TMA store sends a slab. There are two buffers, and every tile begins with the first, so that no "
    "register counts: then a tile must end with the second.",
)
COLUMN_STORES = Rule(
    id="column-stores",
    says="only a swizzled D that TMA stores from the accumulators can be staged by columns: no paired or scaled outputs, "
    "swap_ab, split_k or slice_k",
    because="Padded rows are stored one by one; paired and scaled values are held for a whole M sub-tile; "
    "with swap-AB other warpgroups have D's columns; CTAs, or warpgroups, that divide K need shared memory for partial sums.",
)
RULES = (COLUMN_PIECES, COLUMN_STORES)

SLOTS = 2  # places per warpgroup
SMEM = "smem_d"
EPILOGUE = If | StoreWait | StageTile | StoreTile | StoreCommit | StoreTail


def split_output(kernel: Kernel, target: Target, d_columns: int | None) -> Kernel:
    """With `d_columns`, let each warpgroup stage and store its part of D piece by piece, wave by wave and from left to
    right, while the piece before is still read; of a stream's tiles, those that it finishes. Sets Smem.cols and stages of D,
    column and slot of what stages and stores it, and spells the epilogue once per piece."""
    if not d_columns:
        return kernel
    d = kernel.buffer(SMEM)
    _check_stores(kernel, d, d_columns)
    _check_pieces(kernel, d, d_columns)
    cut = replace(d, cols=d_columns, stages=SLOTS * kernel.consumers)
    smem = tuple(cut if s.name == d.name else s for s in kernel.smem)
    columns = range(0, d.cols, cut.cols)

    def visit(s: Stmt) -> Stmt:
        match s:
            case TileBody() if s.epilogue and not kernel.scheduler.streams:
                return replace(s, epilogue=_pieces(s.epilogue, columns))
            case If(when="head"):
                added = tuple(x for x in s.body if isinstance(x, AddPartials))
                return replace(s, body=(*added, *_pieces(s.body[len(added) :], columns)))
        return s

    return replace(map_stmts(kernel, visit), smem=smem)


def _check_stores(kernel: Kernel, d: Smem, d_columns: int) -> None:
    obstacles = dict(_obstacles(kernel, d))
    if obstacles:
        values = {"d_columns": d_columns, **obstacles}
        raise IllegalConfig(COLUMN_STORES, values, "Use d_columns=null.")


def _obstacles(kernel: Kernel, d: Smem) -> Iterator[tuple[str, object]]:
    if not d.swizzle:
        yield "swizzle", d.swizzle
    if d.along == "n":
        yield "swap_ab", True
    if kernel.cluster.k > 1:
        yield "split_k", kernel.cluster.k
    if kernel.slices > 1:
        yield "slice_k", True
    if any(isinstance(s, Evaluate) for s in statements(kernel)):
        yield "output", "evaluated"


def _check_pieces(kernel: Kernel, d: Smem, columns: int) -> None:
    waves = d.stages // kernel.consumers

    def fits(n: int) -> bool:
        return n % d.slab_cols == 0 and d.cols % n == 0 and waves * (d.cols // n) % SLOTS == 0

    if fits(columns):
        return
    values = {"d_columns": columns, "columns": d.cols, "slab": d.slab_cols, "waves": waves}
    legal = [n for n in range(d.slab_cols, d.cols + 1, d.slab_cols) if fits(n)]
    advice = f"d_columns={' or '.join(map(str, legal))}" if legal else "d_columns=null"
    raise IllegalConfig(COLUMN_PIECES, values, f"Use {advice}.")


def _spelled_anew(s: Stmt) -> bool:
    """Nothing else may stand in the epilogue: `_pieces` would lose it."""
    return isinstance(s, EPILOGUE) or is_sync(s, "warpgroup") or is_fence(s, "async")


def _pieces(epilogue: tuple[Stmt, ...], columns: range) -> tuple[Stmt, ...]:
    """Every piece waits until the group that last read its place is done, which leaves the one of the other
    place; in a tile's first pieces these are of the tile before. The piece between has syncs after the place's last
    tail: the write is after that, too."""
    found = [*walk(epilogue)]
    stages = [s for s in found if isinstance(s, StageTile)]
    stores = {s.wave: s for s in found if isinstance(s, StoreTile)}
    tails = {s.wave: s for s in found if isinstance(s, StoreTail)}
    (sync,) = {s for s in found if is_sync(s, "warpgroup")}
    if not all(map(_spelled_anew, found)) or not (
        set(stores) == set(tails) == {s.wave for s in stages}
    ):
        raise IRError("the epilogue is not one that stages each wave, and stores it with its tail")
    pieces = [(stage, column) for stage in stages for column in columns]
    out: list[Stmt] = []
    for i, (stage, column) in enumerate(pieces):
        wave, slot = stage.wave, i % SLOTS
        store = replace(stores[wave], column=column, slot=slot)
        out += (
            If(when="leader", body=(StoreWait(pending=SLOTS - 1, reads=True),)),
            sync,
            replace(stage, column=column, slot=slot),
            Fence(of="async"),
            sync,
            If(when="leader", body=(store, StoreCommit())),
            replace(tails[wave], column=column, slot=slot),
        )
    return tuple(out)
