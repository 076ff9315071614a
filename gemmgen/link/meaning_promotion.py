"""What the statements that scale a K block's product mean: see meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir import nodes as ir
from ..ir.places import first
from ..ir.promotion import LANES
from ..ir.rewrite import statements
from ..ir.spelling import of_group
from .parts import UNROLL, count, rows_of_a

AT_ONCE, QUAD = 8, 4  # rows of A, and K blocks, whose scales a register of a warp's lanes has


def load_row_scales(k: ir.Kernel, s: ir.LoadRowScales) -> str:
    """Of rows r and r + 8 of a warp's 16."""
    row = f"{64 * s.wave * k.consumers} + warpgroup * 64 + warp * 16 + lane / 4"
    at = f"{s.smem} + ring.stage * {k.buffer(s.smem).stage_bytes} + 4 * ({row}"
    return " ".join(f'{s.dst}[{j}] = "ld.shared.f32"($f, [{at} + {8 * j})]);' for j in range(2))


def load_column_scales(k: ir.Kernel, s: ir.LoadColumnScales) -> str:
    """Of columns 2 * (lane % 4) and the next, of every 8; `i` is that pair's first register of two."""
    n = count(k, s.dst)
    at = f"{s.smem} + ring.stage * {k.buffer(s.smem).stage_bytes} + {4 * 4 * s.part * n}"
    read = f'"ld.shared.v2.f32"({{$f, $f}}, [{at} + 4 * (2 * (lane % 4)) + 4 * 8 / 2 * i])'
    sets = " ".join(f"{s.dst}[i + {j}] = $nth(x, {j});" for j in range(2))
    return f"{UNROLL}for (int i = 0; i < {n}; i += 2) {{ const auto x = {read}; {sets} }}"


def block_of(k: ir.Kernel, s: ir.LoadBlockScales) -> str:
    """The K block whose scale this lane loads; past the last, the last."""
    (blocks,) = {x.blocks for x in statements(k) if isinstance(x, ir.ForChunks)}
    each = QUAD if s.of in ("rows", "all_rows") else blocks
    lane = "lane" if each == LANES else f"lane % {each}"
    ahead = f"chunk + {blocks} + {lane}" if s.block.startswith("next") else lane
    if s.block.endswith("of group"):
        return f"min(tile.k_first / 128 + {ahead}, (shape_k - 1) / 128)"
    return f"min({ahead}, tile.k_blocks - 1)"


def load_block_scales(k: ir.Kernel, s: ir.LoadBlockScales) -> str:
    block = f"(long long)({block_of(k, s)}) * {s.tensor}_stride_k"
    if s.of in ("rows", "all_rows"):
        mine = f"{64 * s.wave * k.consumers} + warpgroup * 64 + warp * 16 + " * (s.of == "rows")
        row = f"min(tile.a_row + {mine}lane / 4 + {AT_ONCE} * i, {rows_of_a(k)} - 1)"
        at = f"{of_group(k, s.tensor)} + (long long){row} * {s.tensor}_stride_m + {block}"
        read = f'"ld.global.f32"($f, [{at}])'
        return f"{UNROLL}for (int i = 0; i < {s.count}; ++i) {s.dst}[i] = {read};"
    if s.of == "waves":
        column = f"(tile.b_row + (i * {k.consumers} + warpgroup) * 64) / 128"
    else:
        column = "tile.b_row / 128 + i"
    column = f"(long long)min({column}, (shape_n - 1) / 128) * {s.tensor}_stride_n"
    at = f"{of_group(k, s.tensor)} + {column} + {block}"
    read = f'"ld.global.f32"($f, [{at}])' if k.pdl else f"__ldg({at})"
    return f"{UNROLL}for (int i = 0; i < {s.count}; ++i) {s.dst}[i] = {read};"


def share_scales(k: ir.Kernel, s: ir.ShareScales) -> str:
    """Of A a register has eight rows, of K blocks one lane each."""
    src, lane = {
        "block": ("i", "k - chunk"),
        "rows": ("i", "lane / 4 * 4 + (k - chunk)"),
        "columns": ("i / 2", "(2 * (lane % 4) + i % 2) * 4 + (k - chunk)"),
    }[s.of]
    each = f"{s.dst}[i] = __shfl_sync(0xffffffff, {s.src}[{src}], {lane});"
    return f"{UNROLL}for (int i = 0; i < {count(k, s.dst)}; ++i) {each}"


def copy(k: ir.Kernel, s: ir.Copy) -> str:
    op = {"setting": "=", "adding": "+="}[s.by]
    return f"{UNROLL}for (int i = 0; i < {count(k, s.dst)}; ++i) {s.dst}[i] {op} {s.src}[i];"


def accumulate(k: ir.Kernel, s: ir.Accumulate) -> str:
    each = f"{s.dst}[i + {first(k, s)}] += {s.src}[i];"
    return f"{UNROLL}for (int i = 0; i < {count(k, s.src)}; ++i) {each}"


def fragment(n: int, dst: str, src: str, at: int, scale: Callable[[int, int], str]) -> str:
    """Of registers 4i to 4i + 3 two are of row r and two of r + 8: scale(row, column) of each."""
    sums = " ".join(
        f"{dst}[i + {at + j}] += {scale(j // 2, j % 2)} * {src}[i + {j}];" for j in range(4)
    )
    return f"{UNROLL}for (int i = 0; i < {n}; i += 4) {{ {sums} }}"


def by_block(k: ir.Kernel, s: ir.Promote) -> str:
    def scale(row: int, column: int) -> str:
        return f"({s.row_scales}[{row}] * {s.block_scales}[{s.block}])"

    return fragment(count(k, s.src), s.dst, s.src, first(k, s), scale)


def by_columns(k: ir.Kernel, s: ir.Promote) -> str:
    def scale(row: int, column: int) -> str:
        return f"{s.row_scales}[{row}] * {s.column_scales}[i / 2 + {column}]"

    return fragment(count(k, s.src), s.dst, s.src, first(k, s), scale)


def by_wave(k: ir.Kernel, s: ir.Promote) -> str:
    def scale(row: int, column: int) -> str:
        return f"({s.column_scales}[i / 2 + {column}] * {s.block_scales}[{s.wave}])"

    return fragment(count(k, s.dst), s.dst, s.src, 0, scale)


def by_column(k: ir.Kernel, s: ir.Promote) -> str:
    def scale(row: int, column: int) -> str:
        return f"{s.column_scales}[i / 2 + {column}]"

    return fragment(count(k, s.dst), s.dst, s.src, 0, scale)


def by_split(k: ir.Kernel, s: ir.Promote) -> str:
    """Register i is of column 2 * i, or the next."""
    split = "(128 - tile.b_row % 128)" if s.by == "select" else "split"
    left = f"2 * i + {2 * first(k, s)} < {split}"

    def scale(row: int, column: int) -> str:
        both = (f"{s.row_scales}[{row}] * {s.block_scales}[{b}]" for b in (0, 1))
        return f"({left} ? {' : '.join(both)})"

    return fragment(count(k, s.src), s.dst, s.src, first(k, s), scale)


PROMOTED_BY: dict[str, Callable[[ir.Kernel, ir.Promote], str]] = {
    "block": by_block,
    "columns": by_columns,
    "wave": by_wave,
    "column": by_column,
    "split": by_split,
    "select": by_split,
}
PROMOTIONS: dict[type[ir.Stmt], Callable[[ir.Kernel, Any], str]] = {
    ir.LoadRowScales: load_row_scales,
    ir.LoadColumnScales: load_column_scales,
    ir.LoadBlockScales: load_block_scales,
    ir.ShareScales: share_scales,
    ir.Copy: copy,
    ir.Accumulate: accumulate,
    ir.Promote: lambda k, s: PROMOTED_BY[s.by](k, s),
}
