"""Which bytes of a CTA's shared memory a statement touches, as half-open spans of addresses."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import IRError
from ..ir.nodes import (
    AddPartials,
    BulkRowStore,
    CopyRows,
    Kernel,
    LoadBlocks,
    LoadColumnScales,
    LoadRowScales,
    Mma,
    MmaDecoded,
    ReadCodes,
    SendPartials,
    ShareAmax,
    Smem,
    StageTile,
    StoreRows,
    StoreTail,
    SumSquares,
    TakeAmax,
    TmaLoad,
    TmaStore,
)
from ..ir.stores import TRANSPOSED, OfD, slot
from .decoding import of_blocks
from .errors import ProtocolViolation, Trace
from .ops import Agent
from .properties import RACE

Span = tuple[int, int]
Spans = tuple[Span, ...]
Access = (
    TmaLoad
    | CopyRows
    | LoadBlocks
    | ReadCodes
    | Mma
    | LoadRowScales
    | SumSquares
    | LoadColumnScales
    | StageTile
    | TmaStore
    | StoreRows
    | StoreTail
    | BulkRowStore
    | SendPartials
    | AddPartials
    | ShareAmax
    | TakeAmax
)
ACCESSES = Access.__args__

MMA_ROWS = 64  # M of a wgmma
MMA_K_BYTES = 32  # K of a wgmma
WARP_ROWS = 16  # rows of a wgmma's result that one warp holds
WARPS = 4  # of a warpgroup
WARP, VECTOR = 32, 16  # threads; bytes that a thread sends at once
WORKSPACE = 1 << 32  # where a CTA's slot in global memory lies, behind all shared memory
SHARED = ("cluster", "cta")  # through what of it sums go
CHUNK, LINE = 16, 128  # bytes that a swizzle moves as one, and after which it moves them elsewhere


def spans(kernel: Kernel, stmt: Access, agent: Agent, stage: int) -> Spans:
    """What `stmt` touches when `agent` executes it in ring position `stage`."""
    named = (stmt.a, stmt.b) if isinstance(stmt, Mma) else (stmt.smem,)
    found = merged(_raw(kernel, stmt, agent, stage))
    through = getattr(stmt, "through", "cluster")
    if through not in SHARED:
        words = kernel.workspace.slot if through == "memory" else kernel.peers.slot
        _within("its slot", stmt, ((WORKSPACE, WORKSPACE + 4 * words),), found)
        return found
    _inside(kernel, stmt, named, found)
    return found


def _raw(kernel: Kernel, stmt: Access, agent: Agent, stage: int) -> Iterator[Span]:
    match stmt:
        case Mma():
            if not isinstance(stmt, MmaDecoded):
                yield from _operand_a(kernel.buffer(stmt.a), stmt, agent, stage)
            yield from _operand_b(kernel.buffer(stmt.b), stmt, stage)
            return
        case TmaLoad():
            yield _box(kernel, stmt, stage)
            return
        case LoadBlocks() | ReadCodes():
            yield from of_blocks(kernel, stmt, start(kernel.buffer(stmt.smem)), agent, stage)
            return
        case CopyRows():
            yield from _copied(kernel.buffer(stmt.smem), agent, stage)
            return
    if isinstance(stmt, SendPartials | AddPartials) and stmt.through not in SHARED:
        yield from _of_warps(kernel, stmt, agent, WORKSPACE)
        return
    s = kernel.buffer(stmt.smem)
    if isinstance(stmt, LoadColumnScales):
        first = start(s) + stage * s.stage_bytes + 4 * stmt.part * kernel.instr.n
        yield first, first + 4 * kernel.instr.n
        return
    if isinstance(stmt, ShareAmax | TakeAmax):  # a row of each warp
        for warp in agent.warps if isinstance(stmt, ShareAmax) else range(s.rows):
            yield from _rows(s, start(s), warp, 1)
        return
    own = slot(stmt) if isinstance(stmt, OfD) else stmt.wave
    block = own * kernel.consumers + agent.share
    at = start(s) + agent.copy(s) * s.copy_bytes + block * s.stage_bytes
    match stmt:
        case LoadRowScales():
            row = start(s) + stage * s.stage_bytes + 4 * MMA_ROWS * block
            for warp in agent.warps:
                yield row + 4 * WARP_ROWS * warp, row + 4 * WARP_ROWS * (warp + 1)
        case SumSquares():
            rows = start(s) + stage * s.stage_bytes
            for warp in agent.warps:
                yield from _rows(s, rows, MMA_ROWS * block + WARP_ROWS * warp, WARP_ROWS)
        case StageTile() if stmt.by in TRANSPOSED:
            for warp in agent.warps:
                columns = WARP_ROWS // kernel.block.fold
                yield from _columns(s, at, columns * warp, columns)
        case SendPartials() | AddPartials():
            yield from _slots(kernel, s, stmt, agent)
        case StageTile():
            for warp in agent.warps:
                yield from _rows(s, at, WARP_ROWS * warp, WARP_ROWS)
        case TmaStore():
            yield at + stmt.offset, at + stmt.offset + box_bytes(kernel, stmt.tensor_map, s)
        case StoreRows() | StoreTail():
            yield from _rows(s, at, 0, s.rows)
        case BulkRowStore():
            for first, end in bulk_rows(agent, s.rows):
                yield from _rows(s, at, first, end - first)


def _slots(
    kernel: Kernel, s: Smem, stmt: SendPartials | AddPartials, agent: Agent
) -> Iterator[Span]:
    """A sender's slot (rank 0, or the first warpgroup, has none), or all."""
    sends = isinstance(stmt, SendPartials)
    of = {"cluster": (agent.cta, kernel.cluster.k), "cta": (agent.warpgroup, agent.slices)}
    own, senders = of[stmt.through]
    ranks = range(max(own, 1), own + 1) if sends else range(1, senders)
    for rank in ranks:
        yield from _of_warps(kernel, stmt, agent, start(s) + (rank - 1) * s.stage_bytes)


def _of_warps(
    kernel: Kernel, stmt: SendPartials | AddPartials, agent: Agent, slot: int
) -> Iterator[Span]:
    """In a slot: 16 bytes of each thread of a warpgroup side by side, of what is left 8. Sums that were rounded are half as long."""
    name = stmt.src if isinstance(stmt, SendPartials) else stmt.dst
    (acc,) = (r for role in kernel.roles for r in role.locals if r.name == name)
    wire = None if stmt.through == "memory" else kernel.peers.wire
    total = acc.count * (wire or acc.dtype).bytes  # of a thread
    start = slot + (stmt.wave * kernel.consumers + agent.share) * 4 * WARP * total
    for first in range(0, total, VECTOR):
        size = min(VECTOR, total - first)
        for warp in agent.warps:
            at = start + WARP * (4 * first + warp * size)
            yield at, at + WARP * size


def _operand_a(s: Smem, mma: Mma, agent: Agent, stage: int) -> Iterator[Span]:
    assert mma.wave_bytes is not None and mma.warpgroup_bytes is not None and mma.steps
    at = start(s) + stage * s.stage_bytes + mma.wave_bytes + agent.share * mma.warpgroup_bytes
    if mma.instr.a_major == "mn":
        yield from _k_rows(s, at, MMA_ROWS, tuple(a for a, _ in mma.steps))
        return
    for slab in _slabs(s, tuple(a for a, _ in mma.steps)):
        yield at + slab * s.slab_stride, at + slab * s.slab_stride + MMA_ROWS * s.slab_bytes


def _operand_b(s: Smem, mma: Mma, stage: int) -> Iterator[Span]:
    assert mma.steps
    at = start(s) + stage * s.stage_bytes + mma.part_bytes
    if mma.instr.b_major == "mn":
        yield from _k_rows(s, at, mma.instr.n, tuple(b for _, b in mma.steps))
        return
    for slab in _slabs(s, tuple(b for _, b in mma.steps)):
        yield at + slab * s.slab_stride, at + slab * s.slab_stride + mma.instr.n * s.slab_bytes


def _k_rows(s: Smem, at: int, elements: int, steps: tuple[int, ...]) -> Iterator[Span]:
    """MN-major: each step of K reads as many rows of every slab that `elements` of M or N lie in."""
    size = MMA_K_BYTES // s.dtype.bytes * s.slab_bytes
    for slab in range(-(-elements * s.dtype.bytes // s.slab_bytes)):
        for step in steps:
            lo = at + slab * s.slab_stride + step
            yield lo, lo + size


def _slabs(s: Smem, steps: tuple[int, ...]) -> list[int]:
    """The slabs whose rows a K-major wgmma reads, given where in the tile each step of K starts."""
    found = set()
    for step in steps:
        slab, within = divmod(step, s.slab_stride)
        column = slab * s.slab_bytes + within
        found |= set(range(column // s.slab_bytes, -(-(column + MMA_K_BYTES) // s.slab_bytes)))
    return sorted(found)


def _rows(s: Smem, at: int, first: int, count: int) -> Iterator[Span]:
    """Whole rows of a tile that starts at address `at`, slab by slab; of padded ones what is no padding."""
    for slab in range(s.slabs):
        row = at + slab * s.slab_stride + first * s.slab_bytes
        end = row + count * s.slab_bytes
        if not s.pad:
            yield row, end
            continue
        held = s.cols * s.dtype.bytes
        yield from ((x, x + held) for x in range(row, end, s.slab_bytes))


def _columns(s: Smem, at: int, first: int, count: int) -> Iterator[Span]:
    """`count` columns of all rows of a tile that starts at address `at`, chunk by swizzled chunk."""
    span = (s.swizzle or CHUNK) // CHUNK  # the chunks of a row that its number mixes
    size = min(CHUNK, count * s.dtype.bytes)  # half a chunk has no columns of another warp's
    for byte in range(first * s.dtype.bytes, (first + count) * s.dtype.bytes, size):
        slab, within = divmod(byte, s.slab_bytes)
        for row in range(s.rows):
            mixed = (row * s.slab_bytes // LINE % span) * CHUNK
            chunk = at + slab * s.slab_stride + row * s.slab_bytes + (within ^ mixed)
            yield chunk, chunk + size


def _box(kernel: Kernel, load: TmaLoad, stage: int) -> Span:
    """The box of CTA rank 0; the other ranks' lie `rank_bytes` apart."""
    s = kernel.buffer(load.smem)
    at = start(s) + stage * s.stage_bytes + load.offset
    return at, at + box_bytes(kernel, load.tensor_map, s)


def _copied(s: Smem, agent: Agent, stage: int) -> Iterator[Span]:
    """Threads have 16 bytes each, in order of their numbers, and then again behind those of all; a swizzle keeps them in their line."""
    at = start(s) + stage * s.stage_bytes
    for warp in agent.warps:
        for first in range(WARP * CHUNK * warp, s.stage_bytes, WARPS * WARP * CHUNK):
            yield at + first, at + first + WARP * CHUNK


def slice_spans(kernel: Kernel, load: TmaLoad, agent: Agent, stage: int) -> Spans:
    """The slice that `agent`'s CTA multicasts."""
    shift = agent.cta * (load.rank_bytes or 0)
    found = tuple((lo + shift, hi + shift) for lo, hi in _raw(kernel, load, agent, stage))
    _inside(kernel, load, (load.smem,), found)
    return found


def bulk_rows(agent: Agent, rows: int) -> list[Span]:
    """The rows (one per thread, of `rows`) that an agent's threads send."""
    starts = (32 * warp for warp in agent.warps)
    return [(first, min(first + 32, rows)) for first in starts if first < rows]


def box_bytes(kernel: Kernel, tensor_map: str, s: Smem) -> int:
    """Bytes a box of `tensor_map` fills, the zeros past the tensor's edge included."""
    box = kernel.map(tensor_map).box
    if box is None:
        raise IRError(f"{tensor_map} has no box: only a lowered kernel can be proved")
    return box[0] * box[1] * s.dtype.bytes


def start(s: Smem) -> int:
    if s.offset is None:
        raise IRError(f"{s.name} has no address: only a lowered kernel can be proved")
    return s.offset


def merged(pieces: Iterator[Span]) -> Spans:
    """The same bytes in as few spans as can be, in address order."""
    out: list[Span] = []
    for lo, hi in sorted(pieces):
        if out and lo <= out[-1][1]:
            out[-1] = out[-1][0], max(hi, out[-1][1])
        else:
            out.append((lo, hi))
    return tuple(out)


def _inside(kernel: Kernel, stmt: Access, named: tuple[str, ...], found: Spans) -> None:
    extents = [(start(s), start(s) + s.bytes) for s in map(kernel.buffer, named)]
    _within(" and ".join(named), stmt, merged(iter(extents)), found)


def _within(name: str, stmt: Access, extents: Spans, found: Spans) -> None:
    for lo, hi in found:
        if not any(first <= lo and hi <= end for first, end in extents):
            text = f"{type(stmt).__name__} touches bytes {lo}..{hi}, outside {name}"
            raise ProtocolViolation(RACE, text, Trace())
