"""Where a tile has few rows, let B's rows be those of wgmma: D^T = B A^T, stored as D."""

from __future__ import annotations

from dataclasses import replace

from ..errors import IllegalConfig, Rule
from ..ir.dtypes import F32
from ..ir.nodes import (
    Evaluate,
    Kernel,
    LoadBlockScales,
    LoadColumnScales,
    LoadRowScales,
    Mma,
    MmaDecoded,
    Promote,
    Registers,
    Role,
    RowAmax,
    Smem,
    StageTile,
    Stmt,
    SumSquares,
    Wgmma,
)
from ..ir.packed import COLUMNS
from ..ir.promotion import BLOCK_SCALES, OF_BLOCKS, promotes
from ..ir.rewrite import map_role, map_stmts, statements, walk
from ..ir.stores import OUTPUT_SCALE_BLOCK
from ..target import Target
from .swap_values import PAIR, swapped_values

SWAPPED_ROWS = Rule(
    id="swapped-rows",
    says="with swap_ab a tile has at most 64 rows, of packed weights 256, unless an epilogue sums rows",
    because="From 64 rows on, swapping A and B saves nothing; and with a scale per column in registers, tiles "
    "of 128 rows spilled.",
)
SWAPPED_SCALES = Rule(
    id="swapped-scales",
    says="with swap_ab an FP8 output needs one consumer warpgroup, and 128 columns of D in a tile",
    because="The greatest of the 128 is what the warps of one warpgroup find together.",
)
SWAPPED_PARTS = Rule(
    id="swapped-parts",
    says="with swap_ab a tile is multiplied in one part",
    because="The columns of wgmma are then at most 64 rows of D: their partial sum is small as it is.",
)
SWAPPED_SUMS = Rule(
    id="swapped-sums",
    says="an output that sums rows is not swizzled",
    because="It is stored from registers: no tile of it lies in shared memory.",
)
DECODED_SWAPPED = Rule(
    id="decoded-swapped",
    says="packed weights need swap_ab",
    because="They become numbers in registers, and of wgmma's operands only A comes from there: with swap_ab that is B.",
)
DECODED_SPAN = Rule(
    id="decoded-span",
    says="packed weights need K blocks of 128 columns, and multicast none or a",
    because="They are packed in blocks of 64 rows and 128 columns, each of which is copied as it lies, by the CTA that multiplies by it.",
)
SQUARES_ROWS = Rule(
    id="squares-rows",
    says="sums of squares of A's rows need swap_ab=false",
    because="A thread sums those of the accumulator's rows that it has, which with swap_ab are B's.",
)
RULES = (
    SQUARES_ROWS,
    DECODED_SWAPPED,
    DECODED_SPAN,
    SWAPPED_ROWS,
    SWAPPED_SCALES,
    SWAPPED_PARTS,
    SWAPPED_SUMS,
)

COLUMN_SCALES = "column_scales"


def swap_operands(kernel: Kernel, target: Target, swap_ab: bool) -> Kernel:
    """With `swap_ab`, exchange what families call A and B: Mma's and its instruction's operands, the scales
    of rows and columns, and how D's pieces lie. Then the accumulator's rows are columns of D, its
    columns rows of D; later passes read that off Smem.along of D. Sets Mma.a, b and instr,
    Kernel.instr, Smem.rows, cols and along of D, and LoadBlockScales.of, and promotes by wave."""
    decoded = any(isinstance(s, MmaDecoded) for s in statements(kernel))
    if decoded:
        _check_decoded(kernel, swap_ab)
    if not swap_ab:
        return kernel
    if any(isinstance(s, SumSquares) for s in statements(kernel)):
        raise IllegalConfig(SQUARES_ROWS, {"swap_ab": True}, "Use swap_ab=false.")
    most = target.wgmma_n if decoded else target.wgmma_m
    if kernel.block.m > most and kernel.block.fold_rows == 1:
        values = {"block_m": kernel.block.m, "most": most}
        raise IllegalConfig(SWAPPED_ROWS, values, "Use swap_ab=false.")
    _check_scales(kernel)
    if kernel.instr.n != kernel.block.m:
        parts = {"parts": kernel.block.m // kernel.instr.n}
        raise IllegalConfig(SWAPPED_PARTS, parts, "Use parts=1 or swap_ab=false.")
    kernel = map_stmts(kernel, lambda s: _exchanged(s) if isinstance(s, Mma) else s)
    kernel = swapped_values(_line_scales(_block_scales(kernel)), target)
    smem = tuple(_beside(kernel, s, target) if s.use == "output" else s for s in kernel.smem)
    return replace(kernel, smem=smem, instr=_turned(kernel.instr))


def _check_decoded(kernel: Kernel, swap_ab: bool) -> None:
    if not swap_ab:
        raise IllegalConfig(DECODED_SWAPPED, {"swap_ab": False}, "Use swap_ab=true.")
    if kernel.block.k != COLUMNS or kernel.cluster.shared == "b":
        values = {"k": kernel.block.k, "multicast": kernel.cluster.shared or "none"}
        fix = f"Use block_k_bytes={COLUMNS * kernel.instr.a.bytes} and multicast=none or a."
        raise IllegalConfig(DECODED_SPAN, values, fix)


def _check_scales(kernel: Kernel) -> None:
    if not any(isinstance(s, RowAmax) for s in statements(kernel)):
        return
    warpgroups, columns = kernel.consumer.count, kernel.block.d_n
    if warpgroups > 1 or columns != OUTPUT_SCALE_BLOCK:
        values = {"warpgroups": warpgroups, "columns": columns}
        fix = f"Use consumers=1 and block_n={OUTPUT_SCALE_BLOCK * kernel.block.fold}, or swap_ab=false."
        raise IllegalConfig(SWAPPED_SCALES, values, fix)


def _exchanged(s: Mma) -> Mma:
    return replace(s, a=s.b, b=s.a, instr=_turned(s.instr))


def _turned(w: Wgmma) -> Wgmma:
    return replace(w, a=w.b, b=w.a, a_major=w.b_major, b_major=w.a_major)


def _beside(kernel: Kernel, d: Smem, target: Target) -> Smem:
    """D's tile in pieces of all its rows and the columns of D that one wgmma computes."""
    columns = target.wgmma_m // kernel.block.fold
    piece = replace(d, rows=kernel.block.d_m, cols=columns, along="n")
    if piece.swizzle and kernel.block.fold_rows > 1:
        raise IllegalConfig(SWAPPED_SUMS, {"swizzle_d": piece.swizzle}, "Use swizzle_d=null.")
    return piece


def _block_scales(kernel: Kernel) -> Kernel:
    """Where 128 of B's rows share a scale: A's are of columns now, the same for every wave, and B's of
    whole waves, since 64 rows at a multiple of 64 lie in one block."""
    wave = {s.src: s.wave for s in statements(kernel) if isinstance(s, StageTile | Evaluate)}
    waves = len(set(wave.values()))
    if not any(promotes(s, *OF_BLOCKS) for s in statements(kernel)):
        return kernel

    def visit(s: Stmt) -> Stmt | tuple[Stmt, ...]:
        match s:
            case LoadRowScales():
                first = LoadColumnScales(dst=COLUMN_SCALES, smem=s.smem)
                return first if s.wave == 0 else ()
            case LoadBlockScales():
                return replace(s, of="waves", count=waves)
            case Promote():
                by = replace(s, by="wave", row_scales="", column_scales=COLUMN_SCALES)
                return replace(by, wave=wave[s.dst])
        return s

    columns = Registers(name=COLUMN_SCALES, dtype=F32, count=kernel.instr.n // PAIR)
    by_rows = {s.dst for s in statements(kernel) if isinstance(s, LoadRowScales)}
    widened = map_stmts(kernel, visit)
    return map_role(widened, "consumer", lambda r: _arrays(r, by_rows, columns, waves))


def _arrays(role: Role, dropped: set[str], columns: Registers, waves: int) -> Role:
    blocks = {s.dst for s in walk(role.body) if isinstance(s, BLOCK_SCALES)}
    kept = (r for r in role.locals if r.name not in dropped)
    widened = (replace(r, count=waves) if r.name in blocks else r for r in kept)
    return replace(role, locals=(*widened, columns))


def _line_scales(kernel: Kernel) -> Kernel:
    """Where rows and columns have scales of their own, each line is read where the other was."""
    rows = {s.smem for s in statements(kernel) if isinstance(s, LoadRowScales)}
    columns = {s.smem for s in statements(kernel) if isinstance(s, LoadColumnScales)}
    other = dict(zip((*rows, *columns), (*columns, *rows), strict=True)) if rows else {}

    def visit(s: Stmt) -> Stmt:
        if isinstance(s, LoadRowScales | LoadColumnScales) and s.smem in other:
            return replace(s, smem=other[s.smem])
        return s

    return map_stmts(kernel, visit)
