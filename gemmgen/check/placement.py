"""P10 in shared memory: a box lands where its coordinates say, and a wgmma reads all of its rows' K.

Row r and column c of a tile belong at slab c // slab_cols, row r of it. Columns are K, or M or N of an
operand that wgmma reads MN-major. What every load and wgmma does is compared with that, statement by
statement. Swizzles mix address bits, so a swizzled buffer, and each of its stages, starts where its
pattern does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ..ir.nodes import (
    Axis,
    Coord,
    CopyRows,
    Decode,
    Kernel,
    LoadBlocks,
    LoadBlockScales,
    LoadColumnScales,
    LoadFragments,
    LoadIndices,
    LoadPages,
    LoadRowScales,
    Major,
    Mma,
    MmaDecoded,
    MultiplyFragments,
    Pointed,
    Promote,
    ReadCodes,
    Smem,
    TmaLoad,
    TmaMap,
)
from ..ir.promotion import OF_A, SCALE_BLOCK
from ..ir.rewrite import statements
from .decoding import decoded, loaded, multiplied, promoted, read
from .finding import Finding
from .footprint import MMA_K_BYTES, MMA_ROWS, start
from .indexed import copied, room
from .paged import page_of, whole
from .properties import CARRY_OVER

TMA_LINE = 128  # bytes: what a box may begin at in shared memory (CUDA driver API)
FRAGMENT_ROWS = 16  # of the accumulator that a warp has (PTX ISA, wgmma and mma.sync)
ROWS_PER_PATTERN = 8  # of `swizzle` bytes each, in every swizzle mode
BASES = {"m": "tile.a_row", "n": "tile.b_row", "k": "k"}


def placed(kernel: Kernel) -> Iterator[Finding]:
    """Every buffer, every load and every wgmma of the kernel."""
    for b in kernel.smem:
        pattern = ROWS_PER_PATTERN * (b.swizzle or 0)
        if pattern and any(at % pattern for at in (b.offset or 0, b.stage_bytes)):
            text = (
                f"{b.name}, byte {b.offset} on, is not a multiple of the {pattern} of its swizzle"
            )
            yield Finding(property=CARRY_OVER, message=text)
    for s in statements(kernel):
        texts: Iterator[str] = iter(())
        match s:
            case TmaLoad():
                texts = _load(kernel, s, kernel.buffer(s.smem))
            case CopyRows() | LoadBlocks():
                texts = _copies(kernel, s)
            case LoadIndices():
                texts = room(kernel, s)
            case LoadPages():
                texts = whole(kernel, s)
            case ReadCodes():
                texts = read(kernel, s)
            case Decode():
                texts = decoded(kernel, s)
            case Mma():
                texts = _mma(kernel, s)
            case LoadRowScales() | LoadColumnScales() | LoadBlockScales():
                texts = _scales(kernel, s)
            case LoadFragments():
                texts = _fragments(kernel, s)
            case MultiplyFragments():
                texts = _product(kernel, s)
            case Promote():
                of_block = _promotion(kernel, s) if s.by == "block" else ()
                texts = chain(promoted(kernel, s), of_block)
        for text in texts:
            yield Finding(property=CARRY_OVER, message=f"{type(s).__name__}: {text}")


def _load(kernel: Kernel, s: TmaLoad, to: Smem) -> Iterator[str]:
    m = kernel.map(s.tensor_map)
    inner, outer = s.coords[:2]
    scales = to.use == "scales"
    slab, within = divmod(inner.offset, to.slab_cols)
    rows, beside = divmod(s.offset - slab * to.slab_stride, to.slab_bytes)
    if within or beside or (rows and not m.pages) or outer.offset:
        yield f"column {inner.offset} of {to.name} does not lie {s.offset} bytes into it"
    for axis, coord in ((m.inner, inner), (m.outer, outer))[: 1 if m.pages else 2]:
        step = kernel.block.k if axis == "k" and not scales else 1
        if coord.start != _start(kernel, m, axis, scales):
            yield f"{m.name} starts along {axis} at {coord.start or 0}"
        if coord.of != _of(kernel, m, axis):
            yield f"{m.name} is placed along {axis} in {coord.of or 'all'} of it"
        if (coord.base, coord.scale) != (BASES[axis], step):
            yield f"{m.name} is placed along {axis} by {coord.base} * {coord.scale}"
    shift = s.rank_bytes or 0
    if any(x % TMA_LINE for x in (start(to) + s.offset, to.stage_bytes, shift)):
        yield f"a box lands in {to.name} at no multiple of {TMA_LINE} bytes in some stage"
    if m.pages:
        yield from page_of(kernel, s, rows)
        return
    if to.use == "operand" and m.outer == "n" and kernel.groups.pages:
        yield f"{m.name} has no pages, of which the kernel knows"
    if m.box != _box(s, to):
        yield f"{m.name}'s box {m.box} does not fill {_box(s, to)} of {to.name}"
    yield from _group(kernel, m, s.coords[2:])
    yield from _rank(s, to, (inner, outer))


def _copies(kernel: Kernel, s: CopyRows | LoadBlocks) -> Iterator[str]:
    found = _pointed(kernel, s)
    if len(found) != 1:
        yield f"{s.tensor} is pointed to as {len(found)} operands"
    for x in found:
        if isinstance(s, LoadBlocks):
            yield from loaded(kernel, s, _start(kernel, x, "k", True))
        else:
            yield from copied(kernel, s, x, _start(kernel, x, "k", False))


def _pointed(kernel: Kernel, s: CopyRows | LoadBlocks) -> list[Pointed]:
    return [x for x in kernel.pointed if x.tensor == s.tensor]


def _start(kernel: Kernel, m: TmaMap | Pointed, axis: str, scales: bool) -> str:
    """Where groups split K, the coordinate along it counts from the group's first, unless the group has
    a matrix of its own. Where CTAs do, from this CTA's first."""
    splits = kernel.groups.depths or kernel.cluster.k > 1 or kernel.scheduler.streams
    if axis != "k" or not splits or (kernel.groups.own(m) and not scales):
        return ""
    return "tile.k_first / 128" if scales else "tile.k_first"


def _of(kernel: Kernel, m: TmaMap, axis: str) -> str:
    """Where tiles sum all groups, a coordinate along K is one in a group's."""
    return "depth" if kernel.groups.summed and m.grouped and axis == "k" else ""


def _group(kernel: Kernel, m: TmaMap, rest: tuple[Coord, ...]) -> Iterator[str]:
    """The tile's; where tiles sum all groups, the one that the place along K is in."""
    group = Coord(base="tile.group")
    if kernel.groups.summed:
        start = _start(kernel, m, "k", False)
        group = Coord(base="k", scale=kernel.block.k, start=start, of="group")  # type: ignore[arg-type]
    if rest != (group,) * m.grouped:
        yield f"{m.name} {'has' if m.grouped else 'has no'} groups, and is placed by {rest}"


def _box(s: TmaLoad, to: Smem) -> tuple[int, int]:
    """(inner, outer) elements of one slab, or of a rank's slice of it."""
    if to.use == "scales":
        return s.slice or to.cols, to.rows
    return to.slab_cols, s.slice or to.rows


def _rank(s: TmaLoad, to: Smem, coords: tuple[Coord, Coord]) -> Iterator[str]:
    """A rank's slice lies as far into the buffer as into the tensor."""
    sliced, other = coords if to.use == "scales" else coords[::-1]
    unit = to.dtype.bytes if to.use == "scales" else to.slab_bytes
    shift = s.rank_bytes or 0
    if sliced.rank_step * unit != shift or other.rank_step:
        yield f"ranks are {sliced.rank_step} apart in the tensor, {shift} bytes in {to.name}"


def _mma(kernel: Kernel, s: Mma) -> Iterator[str]:
    a, b = kernel.buffer(s.a), kernel.buffer(s.b)
    sides: dict[str, tuple[Axis, Axis]] = {m.smem: (m.inner, m.outer) for m in kernel.maps}
    copies = (x for x in statements(kernel) if isinstance(x, CopyRows | LoadBlocks))
    sides |= {c.smem: ("k", x.outer) for c in copies for x in _pointed(kernel, c)}
    (shared, _), (other, width) = _sides(kernel)
    for side, smem, major in ((shared, a, s.instr.a_major), (other, b, s.instr.b_major)):
        wanted = ("k", side) if major == "k" else (side, "k")
        if sides.get(smem.name) != wanted:
            yield f"multiplies {smem.name} as {side.upper()}, which holds {sides.get(smem.name)}"
    if s.instr != kernel.instr:
        yield f"is {s.instr}, the kernel's wgmma is {kernel.instr}"
    yield from _walked(kernel, s, a, b)
    held = b.rows if s.instr.b_major == "k" else b.cols
    if width % s.instr.n or held != width:
        yield f"N is {s.instr.n}, {b.name} has {held} rows, the block {width} along {other.upper()}"
    first = s.part * s.instr.n
    if not 0 <= first < width or s.part_bytes != _rows(b, first, s.instr.b_major):
        yield f"part {s.part}'s rows of {b.name} do not start {s.part_bytes} bytes into it"


def _walked(kernel: Kernel, s: Mma, a: Smem, b: Smem) -> Iterator[str]:
    """From its wave's rows on, and along K."""
    if isinstance(s, MmaDecoded):
        yield from multiplied(s, _steps(kernel, s, b, b))
        return
    rows = _rows(a, MMA_ROWS, s.instr.a_major)
    if (s.wave_bytes, s.warpgroup_bytes) != (s.wave * kernel.consumers * rows, rows):
        yield f"wave {s.wave}'s rows of {a.name} do not start {s.wave_bytes} bytes into it"
    if s.steps != _steps(kernel, s, a, b):
        yield f"the steps {s.steps} do not walk along all of K"


def _sides(kernel: Kernel) -> tuple[tuple[Axis, int], tuple[Axis, int]]:
    """The side of the block that warpgroups and waves share out, as they do D's pieces, and the other."""
    m, n = ("m", kernel.block.m), ("n", kernel.block.n)
    along = {s.along for s in (*kernel.smem, *kernel.unstaged) if s.use == "output"}
    return (n, m) if along == {"n"} else (m, n)  # type: ignore[return-value]


def _scales(kernel: Kernel, s: LoadRowScales | LoadColumnScales | LoadBlockScales) -> Iterator[str]:
    """The scales of an operand's rows go to the accumulator's rows or columns, as the operand does."""
    (shared, _), (other, _) = _sides(kernel)
    if isinstance(s, LoadBlockScales):
        if (shared == "n") != (s.of in ("waves", "all_rows")):
            whose = "A's" if s.of in OF_A else "B's"
            yield f"reads {whose} scales, and the accumulator's rows lie along {shared.upper()}"
        return
    wanted = shared if isinstance(s, LoadRowScales) else other
    of = {m.smem: m.inner for m in kernel.maps}[s.smem]
    if of != wanted:
        yield f"reads the scales along {of} in {s.smem}, not those along {wanted}"


def _fragments(kernel: Kernel, s: LoadFragments) -> Iterator[str]:
    """The rows of the accumulator are those of the operand that warpgroups share out; a thread has a 32nd of the warp's bytes."""
    (shared, _), (other, _) = _sides(kernel)
    side, rows = {"rows": (shared, FRAGMENT_ROWS), "columns": (other, kernel.instr.n)}[s.of]
    if BASES[side] != f"tile.{s.tensor}_row":
        yield f"{s.of} of the accumulator lie along {side.upper()}, and {s.tensor} is loaded"
    k_bytes = kernel.block.k * kernel.instr.a.bytes
    for held in (r.count for role in kernel.roles for r in role.locals if r.name == s.dst):
        if 4 * 32 * held != rows * k_bytes:
            yield f"{s.dst} holds {held} registers of {rows} rows of {k_bytes} bytes"
    if s.smem:
        buffer, both = kernel.buffer(s.smem), (FRAGMENT_ROWS + kernel.instr.n) * k_bytes
        if buffer.stage_bytes != both * kernel.threads // 32:
            yield f"{s.smem} has {buffer.stage_bytes} bytes for a K block, whose warps have {both} each"


def _product(kernel: Kernel, s: MultiplyFragments) -> Iterator[str]:
    of = kernel.instr.a
    if (of.bits == 8) != (s.by == "halves"):
        yield f"multiplies {of.name} by {s.by}"


def _promotion(kernel: Kernel, s: Promote) -> Iterator[str]:
    """Where no column is asked which scale block it lies in, all of the part's lie in the one named,
    counted from the tile's first, wherever the tile begins."""
    tiles = range(0, SCALE_BLOCK * kernel.block.n, kernel.block.n)
    ends = s.part * kernel.instr.n, (s.part + 1) * kernel.instr.n - 1
    found = {(t + column) // SCALE_BLOCK - t // SCALE_BLOCK for t in tiles for column in ends}
    if found != {s.block}:
        yield f"part {s.part} lies in the blocks {sorted(found)}, and is scaled by {s.block}'s"


def _steps(kernel: Kernel, s: Mma, a: Smem, b: Smem) -> tuple[tuple[int, int], ...]:
    k_bytes = kernel.block.k * a.dtype.bytes
    return tuple(
        (_k(a, at, s.instr.a_major), _k(b, at, s.instr.b_major))
        for at in range(0, k_bytes, MMA_K_BYTES)
    )


def _k(s: Smem, byte: int, major: Major) -> int:
    """Where K, `byte` bytes of its elements on, lies in the tile."""
    return _column(s, byte) if major == "k" else byte // s.dtype.bytes * s.slab_bytes


def _rows(s: Smem, rows: int, major: Major) -> int:
    """Where the M or N that follows `rows` others lies."""
    return rows * s.slab_bytes if major == "k" else _column(s, rows * s.dtype.bytes)


def _column(s: Smem, byte: int) -> int:
    slab, within = divmod(byte, s.slab_bytes)
    return slab * s.slab_stride + within
