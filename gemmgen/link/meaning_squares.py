"""What the statements mean that sum squares of A's rows: see meaning."""

from __future__ import annotations

from ..ir import nodes as ir
from .meaning_ranks import HALVES
from .meaning_waits import Meaning
from .parts import UNROLL, count

LINE, PIECE = 128, 16  # bytes of a row of a K block, and of what the swizzle moves as one
PIECES, WORDS = 4, 4  # of two rows those that a lane has, and of a piece


def sum_squares(k: ir.Kernel, s: ir.SumSquares) -> str:
    """Of rows r and r + 8 lane l of a quad has pieces 2 * l and the next; piece i of row r lies where i ^ r % 8 would without a swizzle."""
    buffer = k.buffer(s.smem)
    row = f"{64 * s.wave * k.consumers} + warpgroup * 64 + warp * 16 + lane / 4 + i / 2 * 8"
    place = f"(2 * (lane % 4) + i % 2 ^ lane / 4) * {PIECE}"
    at = f"{s.smem} + ring.stage * {buffer.stage_bytes} + ({row}) * {LINE} + {place}"
    sets = " ".join(f"pairs[{w}] = $nth(x, {w});" for w in range(WORDS))
    read = f'const auto x = "ld.shared.v4.s32"({{$r, $r, $r, $r}}, [{at}]); {sets}'
    halves = (half.format("uint32_t(pairs[j])") for half in HALVES[buffer.dtype])
    add = " ".join(f"{s.dst}[i / 2] += {x} * {x};" for x in halves)
    each = f"{UNROLL}for (int j = 0; j < {WORDS}; ++j) {{ {add} }}"
    return f"{UNROLL}for (int i = 0; i < {PIECES}; ++i) {{ int pairs[{WORDS}]; {read} {each} }}"


def add_squares(k: ir.Kernel, s: ir.AddSquares) -> str:
    """Register i is of row r or r + 8; a lane has two columns of every eight."""
    fold = k.block.fold
    column = f"tile.d_col * {fold} + i / 4 * 8 + lane % 4 * 2 + i % 2"
    upper, lower = (_quad(f"{s.src}[{r}]") for r in range(2))
    there = f"{column} == shape_n - {fold}"
    return f"{UNROLL}for (int i = 0; i < {count(k, s.dst)}; ++i) if ({there}) {s.dst}[i] += i / 2 % 2 ? {lower} : {upper};"


def _quad(x: str) -> str:
    two = f"{x} + __shfl_xor_sync(0xffffffff, {x}, 1)"
    return f"(({two}) + __shfl_xor_sync(0xffffffff, {two}, 2))"


SQUARES: dict[type[ir.Stmt], Meaning] = {
    ir.SumSquares: sum_squares,
    ir.AddSquares: add_squares,
}
