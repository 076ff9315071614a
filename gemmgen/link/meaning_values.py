"""What the statements of the epilogue mean that work on FP32 values in registers: see meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir import nodes as ir
from ..ir.spelling import epilogue_value, folded, of_group
from ..ir.stores import E4M3_MAX, LEAST_AMAX
from .meaning_swapped import (
    evaluate_pairs,
    normalise_columns,
    row_amax_columns,
    share_amax,
    store_scales_columns,
    take_amax,
)
from .parts import UNROLL, count, end_of_rows


def evaluate_rows(k: ir.Kernel, s: ir.Evaluate) -> str:
    fold = k.block.fold
    loop = f"{UNROLL}for (int i = 0; i < {count(k, s.src)}; i += {fold})"
    return f"{epilogue_value(k, s)}{loop} {s.dst}[i / {fold}] = value(i);"


def read_argument(k: ir.Kernel, s: ir.Evaluate) -> str:
    loop = f"{UNROLL}for (int i = 0; i < {count(k, s.dst)}; ++i)"
    return f"{epilogue_value(k, s)}{loop} {s.dst}[i] = value(i);"


def sum_rows(k: ir.Kernel, s: ir.Evaluate) -> str:
    """Register i of the accumulator is of row i / 4 * 8 + i % 2 and two more for each lane, column c or c + 8. Of each four sums lane i % 4 keeps the i-th,
    of the two that it has a half of gives one away, and of the rest again."""
    n, fold = count(k, s.dst), k.block.fold_rows
    register = f"value(j / 2 * {fold // 2} + i / 2 * 4 + j % 2 * 2 + i % 2)"
    odd, upper = "lane % 2", "lane / 2 % 2"

    def shared(mine: str, low: str, high: str, apart: int) -> str:
        """Of two, with what the lane `apart` gives it, the higher where `mine`."""
        return f"({mine} ? {high} : {low}) + __shfl_xor_sync(0xffffffff, {mine} ? {low} : {high}, {apart})"

    first = shared(odd, "parts[i * 4]", "parts[i * 4 + 1]", 1)
    second = shared(odd, "parts[i * 4 + 2]", "parts[i * 4 + 3]", 1)
    both = f"const float first = {first}; const float second = {second};"
    return (
        f"{epilogue_value(k, s)}float parts[{4 * n}]; for (auto& x : parts) x = 0;"
        f"{UNROLL}for (int i = 0; i < {fold // 4}; ++i)"
        f"{UNROLL}for (int j = 0; j < {2 * k.block.d_m}; ++j) parts[j] += {register};"
        f"{UNROLL}for (int i = 0; i < {n}; ++i)"
        f" {{ {both} {s.dst}[i] = {shared(upper, 'first', 'second', 2)}; }}"
    )


def row_amax_rows(k: ir.Kernel, s: ir.RowAmax) -> str:
    """Register i is of row r or r + 8; a lane has two columns (folded: one) of every eight (four)."""
    fold = k.block.fold
    mine, columns = f"lane % 4 * {2 // fold}", folded(k, "shape_n")
    column = f"i / {4 // fold} * {8 // fold} + i % {2 // fold}"
    x = f"float({column} < {columns} - tile.d_col - {mine} ? {s.src}[i] : 0.0f)"
    to = f"{s.dst}[i / 64 * 2 + i / {2 // fold} % 2]"
    two = f"fmaxf({s.dst}[i], __shfl_xor_sync(0xffffffff, {s.dst}[i], 1))"
    four = f"fmaxf({two}, __shfl_xor_sync(0xffffffff, {two}, 2))"
    return (
        f"for (auto& x : {s.dst}) x = 0;"
        f"{UNROLL}for (int i = 0; i < {count(k, s.src)}; ++i) {to} = fmaxf({to}, fabsf({x}));"
        f"{UNROLL}for (int i = 0; i < {count(k, s.dst)}; ++i) {s.dst}[i] = fmaxf({four}, {LEAST_AMAX}f);"
    )


def store_scales_rows(k: ir.Kernel, s: ir.StoreScales) -> str:
    row = (
        f"tile.d_row + ({s.wave * k.consumers} + warpgroup) * 64 + warp * 16 + lane / 4 + i % 2 * 8"
    )
    block = "(tile.d_col / 128 + i / 2)"
    there = f"lane % 4 == 0 && {row} < {end_of_rows(k)} && {block} * 128 < {folded(k, 'shape_n')}"
    at = f"{of_group(k, s.tensor)}[(long long){block} * {s.tensor}_stride + {row}]"
    store = f"if ({there}) {at} = __fdiv_rn({s.src}[i], {E4M3_MAX}f);"
    return f"{UNROLL}for (int i = 0; i < {count(k, s.src)}; ++i) {{ {store} }}"


def normalise_rows(k: ir.Kernel, s: ir.Normalise) -> str:
    n = count(k, s.amax)
    divided = f"inverse[i] = __fdiv_rn({E4M3_MAX}f, {s.amax}[i]);"
    times = f"{s.dst}[i] *= inverse[i / 64 * 2 + i / {2 // k.block.fold} % 2];"
    return (
        f"float inverse[{n}];{UNROLL}for (int i = 0; i < {n}; ++i) {divided}"
        f"{UNROLL}for (int i = 0; i < {count(k, s.dst)}; ++i) {times}"
    )


# By what the statement is of.
EVALUATES = {
    "rows": evaluate_rows,
    "pairs": evaluate_pairs,
    "sums": sum_rows,
    "argument": read_argument,
}
ROW_AMAX = {"rows": row_amax_rows, "columns": row_amax_columns}
STORE_SCALES = {"rows": store_scales_rows, "columns": store_scales_columns}
NORMALISE = {"rows": normalise_rows, "columns": normalise_columns}
VALUES: dict[type[ir.Stmt], Callable[[ir.Kernel, Any], str]] = {
    ir.Evaluate: lambda k, s: EVALUATES[s.of](k, s),
    ir.RowAmax: lambda k, s: ROW_AMAX[s.of](k, s),
    ir.ShareAmax: share_amax,
    ir.TakeAmax: take_amax,
    ir.StoreScales: lambda k, s: STORE_SCALES[s.of](k, s),
    ir.Normalise: lambda k, s: NORMALISE[s.of](k, s),
}
