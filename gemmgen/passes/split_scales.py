"""Find how many of B's 128-column scale blocks a tile can touch, and promote accordingly."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ..errors import IllegalConfig, Rule
from ..ir.nodes import (
    ForChunks,
    ForK,
    Kernel,
    LoadBlockScales,
    PerSplit,
    Promote,
    Role,
    Stmt,
)
from ..ir.promotion import BLOCK_SCALES, OF_BLOCKS, SCALE_BLOCK, promotes
from ..ir.rewrite import map_role, map_stmts, statements, walk
from ..target import Target

COPIES = 8  # of the K loop, at most: code that runs for other tiles is read by nobody meanwhile
INT8_UNROLL = 2  # of copied loops: with 4 most tiles of 160 and 192 columns spilled 16 to 48 bytes

SCALE_BLOCK_K = Rule(
    id="scale-block-k",
    says="a kernel that promotes must consume one scale block (128 of K) per pipeline stage",
    because="Both operands' scales change every 128 of K; partial sums of two blocks cannot share a scale.",
)
SCALE_BLOCKS = Rule(
    id="scale-blocks",
    says="a tile may touch at most two of B's 128-column scale blocks",
    because="Two scales are one select per 8 columns; 152, 168, 176, 184 and from 200 to 248 would need three.",
)
SPLIT_UNROLL = Rule(
    id="split-unroll",
    says="a K loop of INT8 sums that is copied for tiles of two scale blocks is unrolled by at most 2",
    because="With more, conversions of several K blocks are in flight at once, and registers spill.",
)
RULES = (SCALE_BLOCK_K, SCALE_BLOCKS, SPLIT_UNROLL)


def split_scales(kernel: Kernel, target: Target) -> Kernel:
    """Give tiles that straddle a scale block two scales. Sets LoadBlockScales.count, Registers.count and
    Promote.block. A Promote whose columns straddle is one by split, its loop in PerSplit, or by select
    where there are many such columns."""
    found = [s for s in statements(kernel) if isinstance(s, Promote)]
    if found:
        _check_block_k(kernel)
    if not any(promotes(s, *OF_BLOCKS) for s in found):
        return kernel
    _check_blocks(kernel)
    count = blocks_touched(kernel.block.n)
    if count == 1:
        return kernel

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case LoadBlockScales():
                return replace(stmt, count=count)
            case Promote():
                return _spelled(stmt, kernel.instr.n, kernel.block.n)
            case ForChunks() if any(promotes(s, "split") for s in walk(stmt.body)):
                return _copied(stmt, kernel)
        return stmt

    return map_role(map_stmts(kernel, visit), "consumer", lambda r: _widen(r, count))


def blocks_touched(block_n: int) -> int:
    """The most 128-column blocks that columns [i * block_n, (i + 1) * block_n) meet, over all i."""
    starts = range(0, SCALE_BLOCK * block_n, block_n)
    return max((s + block_n - 1) // SCALE_BLOCK - s // SCALE_BLOCK + 1 for s in starts)


def splits(block_n: int) -> tuple[int, ...]:
    """The columns of a tile at which its second scale block can begin (128 or more: it has none)."""
    return tuple(
        sorted({SCALE_BLOCK - s % SCALE_BLOCK for s in range(0, SCALE_BLOCK * block_n, block_n)})
    )


def _spelled(p: Promote, columns: int, block_n: int) -> Stmt:
    """A part that no split cuts has one scale, the first or the second."""
    first, end = p.part * columns, (p.part + 1) * columns
    where = splits(block_n)
    if end <= where[0] or where[-1] <= first:
        return replace(p, block=int(where[-1] <= first))
    return replace(p, by="split" if copied(block_n) else "select")


@cache
def copied(block_n: int) -> tuple[int, ...]:
    """The splits that the K loop is copied for: none where a tile has one scale, or so many that selects cost less."""
    found = splits(block_n) if blocks_touched(block_n) > 1 else ()
    return found if len(found) <= COPIES else ()


def _copied(loop: ForChunks, kernel: Kernel) -> Stmt:
    unroll = max(s.unroll for s in walk(loop.body) if isinstance(s, ForK))
    if kernel.instr.d.integer and unroll > INT8_UNROLL:
        values = {
            "unroll": unroll,
            "block_n": kernel.block.n,
            "copies": len(copied(kernel.block.n)),
        }
        raise IllegalConfig(SPLIT_UNROLL, values, f"Use unroll={INT8_UNROLL}.")
    return PerSplit(body=(loop,), step=copied(kernel.block.n)[0])


def _check_block_k(kernel: Kernel) -> None:
    if kernel.block.k != SCALE_BLOCK:
        raise IllegalConfig(SCALE_BLOCK_K, {"block_k": kernel.block.k}, "Use block_k_bytes=128.")


def _check_blocks(kernel: Kernel) -> None:
    n = kernel.block.n
    if blocks_touched(n) > 2:
        values = {"block_n": n, "blocks": blocks_touched(n)}
        raise IllegalConfig(
            SCALE_BLOCKS, values, "Use block_n up to 128, or 136, 144, 160, 192 or 256."
        )


def _widen(role: Role, count: int) -> Role:
    names = {s.dst for s in walk(role.body) if isinstance(s, BLOCK_SCALES)}
    return replace(
        role,
        locals=tuple(replace(r, count=count) if r.name in names else r for r in role.locals),
    )
