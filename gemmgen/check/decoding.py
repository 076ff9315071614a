"""Weights of 4 or 8 bits: which bytes a warp reads of a block, what registers hold of them, and whether all of it is multiplied. See footprint.py, values.py
and placement.py."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import nodes as ir
from ..ir.rewrite import statements
from .agent import Agent
from .reader import Held, Reader

# A block: 64 rows and 128 columns of codes, then 32 records, of two rows each.
BLOCK_ROWS, BLOCK_COLUMNS, PAIRS = 64, 128, 32
PIECE, WARP, WARPS = 16, 32, 4  # bytes; threads; warps of a warpgroup
WORD_BYTES, HALVES, A_REGISTERS = 4, 2, 4  # of a register; of a block; of a step
K_BYTES = 32  # of a step
HALF, CODED, SCALES = "half {} of the numbers", "codes", "row scales"


def of_blocks(
    kernel: ir.Kernel, s: ir.LoadBlocks | ir.ReadCodes, start: int, agent: Agent, stage: int
) -> Iterator[tuple[int, int]]:
    """All of a stage; or 16 bytes of each thread, those of all 128 side by side, as often as there are, and of each quad of lanes its two rows' record."""
    buffer = kernel.buffer(s.smem)
    block = start + stage * buffer.stage_bytes
    if isinstance(s, ir.LoadBlocks):
        yield block, block + buffer.stage_bytes
        return
    block += s.wave_bytes or 0
    block += agent.share * (s.warpgroup_bytes or 0)
    codes = _codes(s)
    record = (buffer.row_bytes - codes) // WARPS
    for warp in agent.warps:
        for first in range(PIECE * WARP * warp, codes, PIECE * WARP * WARPS):
            yield block + first, block + first + PIECE * WARP
        yield block + codes + record * warp, block + codes + record * (warp + 1)


def of_codes(r: Reader, s: ir.ReadCodes | ir.Decode) -> None:
    """Numbers are of the codes, and the records, of this K block; they keep the wave that was read."""
    if isinstance(s, ir.ReadCodes):
        for name, what in ((s.dst, CODED), (s.records, SCALES if s.beside == "scales" else CODED)):
            if name:
                r.registers[name] = r.now(what, s.wave)
        return
    held = r.registers.get(s.codes)
    wave = held.wave if held else None
    for name in filter(None, (s.codes, s.records)):
        r.want(s, name, r.now(CODED, wave))
    r.registers[s.dst] = r.now(HALF.format(s.half), wave)


def multiply_decoded(r: Reader, s: ir.MmaDecoded) -> None:
    """The first half of a K block, then the second: only with that the block is in the sum, or where each begins one, is its product."""
    r.want(s, s.decoded, r.now(HALF.format(s.half), s.wave))
    begun, half = f"{s.dst}, of half a K block", r.now("first half of products", s.wave)
    over = r.now("half of a product", s.wave, s.part)
    if s.half:
        r.want(s, begun, half)
        r.registers.pop(begun, None)
        if r.registers.get(s.dst) == over:
            r.registers[s.dst] = r.now("product", s.wave, s.part)
        else:
            r.add(s, s.dst, s.wave)
        return
    if begun in r.registers:
        r.fail(s, begun, Held(what="sum of whole K blocks", tile=r.tile, wave=s.wave))
    if s.fresh == "block":
        r.registers[s.dst] = over
    elif r.k == r.mine.start and s.fresh == "tile":
        r.registers[s.dst] = Held(what="sum", tile=r.tile, wave=s.wave)
    r.registers[begun] = half


def loaded(kernel: ir.Kernel, s: ir.LoadBlocks, begins: str) -> Iterator[str]:
    """A stage has a block for each 64 rows of the tile. begins: along K, where it counts from."""
    to = kernel.buffer(s.smem)
    if (to.rows, kernel.block.k) != (kernel.block.n // BLOCK_ROWS, BLOCK_COLUMNS):
        yield f"{to.name} has {to.rows} blocks for a tile of {kernel.block.n} x {kernel.block.k}"
    if (s.k.base, s.k.scale, s.k.offset, s.k.rank_step) != ("k", 1, 0, 0):
        yield f"{s.tensor} is read along K at {s.k}"
    if s.k.start != begins:
        yield f"{s.tensor} starts along K at {s.k.start or 0}"
    if (to.offset or 0) % PIECE or to.row_bytes % PIECE:
        yield f"a block lands in {to.name} at no multiple of {PIECE} bytes"


def read(kernel: ir.Kernel, s: ir.ReadCodes) -> Iterator[str]:
    """Each wave of each warpgroup has the block of its own 64 rows, packed as it is read, and room for it."""
    of = kernel.buffer(s.smem)
    if s.form.to != kernel.instr.a or of.row_bytes != s.form.block_bytes:
        yield f"{of.name} has blocks of {of.row_bytes} bytes, {s.form.name} has {s.form.block_bytes}"
    block, codes = of.row_bytes, _codes(s)
    if (s.wave_bytes, s.warpgroup_bytes) != (s.wave * kernel.consumers * block, block):
        yield f"wave {s.wave}'s block of {of.name} does not start {s.wave_bytes} bytes into it"
    words = codes // (WARPS * WARP * WORD_BYTES)
    records = (block - codes) // PAIRS // WORD_BYTES
    wanted = "nothing" if not records else "scales" if s.form.scales_sums else "records"
    if bool(records) != bool(s.records) or s.beside != wanted:
        yield f"reads {s.records or 'no records'} beside {s.beside}, {s.form.name} has {records} words of them"
    yield from _room(kernel, {s.dst: words, **({s.records: records} if records else {})})


def decoded(kernel: ir.Kernel, s: ir.Decode) -> Iterator[str]:
    """By what was read there, into registers for half a block's steps."""
    forms = {x.form for x in statements(kernel) if isinstance(x, ir.ReadCodes) and x.dst == s.codes}
    if forms != {s.form} or s.by != s.form.by:
        yield f"decodes {s.form.name} by {s.by}, {sorted(x.name for x in forms)} is read"
    if not 0 <= s.half < HALVES:
        yield f"decodes half {s.half} of two"
    steps = BLOCK_COLUMNS * s.form.to.bytes // K_BYTES
    yield from _room(kernel, {s.dst: steps // HALVES * A_REGISTERS})


def promoted(kernel: ir.Kernel, s: ir.Promote) -> Iterator[str]:
    """By the scales of its rows, where they were read beside codes."""
    beside = (
        x.records
        for x in statements(kernel)
        if isinstance(x, ir.ReadCodes) and x.beside == "scales"
    )
    if (scales := {*beside}) and s.row_scales not in scales:
        yield f"rows are scaled by {s.row_scales or 'nothing'}, their scales are in {sorted(scales)}"


def multiplied(s: ir.MmaDecoded, steps: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """steps: those of a whole K block."""
    count = len(steps) // HALVES
    mine = steps[s.half * count : (s.half + 1) * count]
    if s.steps != tuple((0, b) for _, b in mine):
        yield f"the steps {s.steps} do not walk along half {s.half} of K"
    if s.fresh != "never" and s.half:
        yield f"half {s.half} overwrites the sum, {s.fresh}"


def _codes(s: ir.ReadCodes) -> int:
    """Bytes of a block's."""
    return BLOCK_ROWS * BLOCK_COLUMNS * s.form.bits // 8


def _room(kernel: ir.Kernel, wanted: dict[str, int]) -> Iterator[str]:
    held = {r.name: r.count for role in kernel.roles for r in role.locals}
    for name, count in wanted.items():
        if held.get(name) != count:
            yield f"{name} has {held.get(name)} registers for {count}"
