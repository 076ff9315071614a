"""P9: the stores of a tile cover it, each element once, and each sends the bytes that belong there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from ..ir.heads import gaps_of
from ..ir.nodes import (
    Kernel,
    Smem,
    StageTile,
    StoreTail,
    StoreValues,
    SumSquares,
    TmaStore,
)
from ..ir.rewrite import statements
from ..ir.row_sums import compact
from ..ir.stores import TRANSPOSED, turns
from . import ops
from .finding import Finding, Place
from .footprint import MMA_ROWS
from .ops import Program, Rect
from .properties import OUTPUT

PIECE = 16  # bytes: what a bulk store writes at a time; a row's rest is StoreTail's
WARPGROUP = 128
TAIL = f"what whole {PIECE}-byte pieces leave of"
SCALES = "the scales of"


def stored(program: Program) -> Iterator[Finding]:
    """Every tile of every CTA, or of the cluster that divides its K: bulk stores, or a warpgroup's threads,
    cover the block, none of it where rows begin with their windows and none reaches the tile, each row block has its tail and, if D is FP8, its scales. Where ranks add their sums up, every tile of
    every launch, by the rank whose rows it is in, or by each."""
    yield from _owned(program)
    block = program.kernel.block
    from_windows = compact(program.kernel.params)
    pieces: dict[tuple[int, int], list[tuple[Rect, Place]]] = {}
    tails: dict[tuple[int, int], dict[Rect, int]] = {}
    scales: dict[tuple[int, int], dict[Rect, int]] = {}
    rows: dict[tuple[int, int], dict[Rect, int]] = {}
    for i, agent in enumerate(program.agents):
        for at, op in enumerate(program.ops[i]):
            if isinstance(op, ops.Store):
                found = pieces.setdefault((_whose(program, agent), op.tile), [])
                found += [(op.rect, (i, at))] * op.times
            elif isinstance(op, ops.Rows):
                key = (_whose(program, agent), op.tile)
                _share(rows, key, op)
                if rows[key][op.rect] % WARPGROUP == 0:  # with this agent, all came
                    pieces.setdefault(key, []).append((op.rect, (i, at)))
            elif isinstance(op, ops.Tail):
                _share(tails, (_whose(program, agent), op.tile), op)
            elif isinstance(op, ops.Scales):
                _share(scales, (_whose(program, agent), op.tile), op)
    ctas = sorted({_whose(program, agent) for agent in program.agents})
    tiles = program.instance.tiles if program.instance.ranks == 1 else program.instance.together
    known: dict[tuple[Rect, ...], list[Finding]] = {}
    for key in sorted({(c, t) for c in ctas for t in range(tiles)} | set(pieces)):
        mine = tuple(sorted(pieces.get(key, [])))
        shape = tuple(rect for rect, _ in mine)
        empty = from_windows and not program.instance.counts[key[1]]
        if empty and mine:
            text = f"tile {key[1]}: no window reaches it, and {_rect(shape[0])} are stored"
            yield Finding(property=OUTPUT, message=text, places=(mine[0][1],))
        if empty:
            continue
        if shape not in known:
            known[shape] = list(_once(mine, (0, block.d_m, 0, block.d_n), key))
        yield from known[shape]
        boxes = not program.kernel.unstaged
        if boxes and not gaps_of(program.kernel.maps).mid:  # else rows are whole boxes
            yield from _shared_out(program.kernel, tails.get(key, {}), key, TAIL)
        if program.kernel.buffer("smem_d").dtype.bytes == 1:
            yield from _shared_out(program.kernel, scales.get(key, {}), key, SCALES)


def _whose(program: Program, agent: ops.Agent) -> int:
    """CTAs of which any may store a tile have one number."""
    size = program.kernel.cluster.size
    if program.instance.ranks > 1:
        return agent.cta % size + size * agent.rank * program.instance.every
    return agent.cta // (program.kernel.cluster.k * program.instance.ctas)


def _owned(program: Program) -> Iterator[Finding]:
    """Who stores it has its rows, where not every rank has them."""
    if program.instance.ranks == 1 or program.instance.every:
        return
    for i, agent in enumerate(program.agents):
        for at, op in enumerate(program.ops[i]):
            stores = isinstance(op, ops.Store | ops.Rows | ops.Tail | ops.Scales)
            if stores and (owner := program.instance.storer(op.tile)) != agent.rank:
                text = f"{agent} stores tile {op.tile}, which is rank {owner}'s"
                yield Finding(property=OUTPUT, message=text, places=((i, at),))


def _share(
    found: dict[tuple[int, int], dict[Rect, int]],
    key: tuple[int, int],
    op: ops.Rows | ops.Tail | ops.Scales,
) -> None:
    shares = found.setdefault(key, {})
    shares[op.rect] = shares.get(op.rect, 0) + op.threads


def _once(
    pieces: Iterable[tuple[Rect, Place]], whole: Rect, key: tuple[int, int]
) -> Iterator[Finding]:
    taken: list[tuple[Rect, Place]] = []
    for rect, place in pieces:
        for other, first in taken:
            if _meet(rect, other):
                text = f"tile {key[1]}: {_rect(rect)} are stored more than once"
                yield Finding(property=OUTPUT, message=text, places=(first, place))
        if not _holds(whole, rect):
            text = f"tile {key[1]}: {_rect(rect)} are stored outside the block, {_rect(whole)}"
            yield Finding(property=OUTPUT, message=text, places=(place,))
        taken.append((rect, place))
    area = sum(_area(rect) for rect, _ in taken)
    if area != _area(whole):
        text = f"tile {key[1]}: {area} of the block's {_area(whole)} elements are stored"
        yield Finding(property=OUTPUT, message=text, places=tuple(p for _, p in taken[:1]))


def _shared_out(
    kernel: Kernel, threads: dict[Rect, int], key: tuple[int, int], what: str
) -> Iterator[Finding]:
    """A tail, or scales, are shared out over the threads of a warpgroup: all must come, and once."""
    d, block = kernel.buffer("smem_d"), kernel.block
    for row, col in product(range(0, block.d_m, d.rows), range(0, block.d_n, d.cols)):
        rect = (row, row + d.rows, col, col + d.cols)
        if threads.get(rect, 0) != WARPGROUP:
            text = (
                f"tile {key[1]}: {threads.get(rect, 0)} threads, not {WARPGROUP}, store {what} "
                f"{_rect(rect)}"
            )
            yield Finding(property=OUTPUT, message=text)


def _meet(a: Rect, b: Rect) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


def _holds(a: Rect, b: Rect) -> bool:
    return a[0] <= b[0] and b[1] <= a[1] and a[2] <= b[2] and b[3] <= a[3]


def _area(r: Rect) -> int:
    return (r[1] - r[0]) * (r[3] - r[2])


def _rect(r: Rect) -> str:
    return f"rows {r[0]} to {r[1] - 1}, columns {r[2]} to {r[3] - 1}"


def staged(kernel: Kernel) -> Iterator[Finding]:
    """Statement by statement: a box leaves from where its columns were staged, cut at whole pieces; sums of squares, the last column, go
    where they alone are."""
    squares = any(isinstance(s, SumSquares) for s in statements(kernel))
    from_windows = compact(kernel.params)
    for stmt in statements(kernel):
        match stmt:
            case TmaStore():
                yield from _box(kernel, stmt, kernel.buffer(stmt.smem))
            case StageTile():
                yield from _accumulator(kernel, stmt)
            case StoreValues() if (stmt.of == "window") != from_windows:
                text = f"StoreValues of {stmt.of}, where rows of D {'begin' if from_windows else 'do not begin'} with their windows"
                yield Finding(property=OUTPUT, message=text)
            case StoreValues(of="sums" | "window"):
                yield from _sums(kernel, stmt)
            case StoreTail() if stmt.own != squares or stmt.own != (stmt.tensor != "d"):
                text = f"D's last column goes to {stmt.tensor}" + " alone" * stmt.own
                yield Finding(
                    property=OUTPUT,
                    message=f"{text}, and squares are {'' if squares else 'not '}summed",
                )


def _box(kernel: Kernel, stmt: TmaStore, s: Smem) -> Iterator[Finding]:
    m = kernel.map(stmt.tensor_map)
    inner = stmt.coords[0].offset - stmt.column
    if stmt.offset * s.slab_cols != inner * s.slab_stride or inner % s.slab_cols:
        text = f"columns {inner} on lie {inner // s.slab_cols * s.slab_stride} bytes into {s.name}"
        yield Finding(property=OUTPUT, message=f"{text}, not {stmt.offset}")
    if m.box != (s.slab_cols, s.rows):
        text = f"{m.name}'s box is {m.box}, a slab of {s.name} is {(s.slab_cols, s.rows)}"
        yield Finding(property=OUTPUT, message=text)
    if m.clip * s.dtype.bytes != PIECE:
        text = f"{m.name} ends at a multiple of {m.clip} elements, the tail at {PIECE} bytes"
        yield Finding(property=OUTPUT, message=text)


def _cut(stmt: StageTile, s: Smem, whole: int) -> Iterator[Finding]:
    """A piece has whole slabs of the tile: then TMA finds its columns as the accumulator's registers run."""
    if not s.swizzle or stmt.column % s.slab_cols or not 0 <= stmt.column <= whole - s.cols:
        text = f"columns {stmt.column} to {stmt.column + s.cols - 1} of {whole} are no whole slabs of {s.name}"
        yield Finding(property=OUTPUT, message=text)


def _sums(kernel: Kernel, stmt: StoreValues) -> Iterator[Finding]:
    """A quad has two columns of each row of D, 8 apart, a sum of every two rows each lane: a warp 16, a warpgroup 64."""
    registers = next((r for role in kernel.roles for r in role.locals if r.name == stmt.src), None)
    d, whole, pairs = kernel.buffer("smem_d"), kernel.block.d_m, registers.count if registers else 0
    if 2 * pairs != whole + whole % 2 or (d.rows, d.cols, d.along) != (whole, MMA_ROWS, "n"):
        text = f"{stmt.src} holds sums of {2 * pairs} rows and {MMA_ROWS} columns, a piece of D is {d.rows} x {d.cols}, the block {whole} rows"
        yield Finding(property=OUTPUT, message=text)


def _accumulator(kernel: Kernel, stmt: StageTile) -> Iterator[Finding]:
    registers = next((r for role in kernel.roles for r in role.locals if r.name == stmt.src), None)
    s = kernel.buffer(stmt.smem)
    transposes = stmt.by in TRANSPOSED
    fold = kernel.block.fold if transposes else 1  # rows of the accumulator to a column of D
    if transposes != (s.along == "n") or s.step * fold != MMA_ROWS:
        text = f"StageTile by {stmt.by} stages pieces of {s.name} {s.step} apart along {s.along}"
        yield Finding(property=OUTPUT, message=text)
    what, side, whole = ("columns", s.cols, kernel.block.d_n)
    if transposes:
        what, side, whole = ("rows", s.rows, kernel.block.d_m)
    if turns(stmt):
        yield from _cut(stmt, s, whole)
        side = whole
    lanes = 2 * fold
    if registers is None or registers.count * lanes != side or side != whole:
        held = registers.count if registers else 0
        text = f"{stmt.src} holds {held * lanes:g} {what}, {s.name} {side}, the block {whole}"
        yield Finding(property=OUTPUT, message=text)
