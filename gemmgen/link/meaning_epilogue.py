"""What the statements of the epilogue mean: see meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir import nodes as ir
from ..ir.dtypes import F32, S32
from ..ir.heads import Heads
from ..ir.places import held, piece, shift
from ..ir.spelling import epilogue_value, folded, of_group
from ..ir.stores import slot
from .meaning_swapped import (
    store_elements_transposed,
    store_folded_transposed,
    store_matrix_transposed,
    store_outside,
    store_sums,
    store_window,
)
from .meaning_values import VALUES
from .parts import UNROLL, coord, count, end_of_rows
from .staging import MATRIX, PAIR_OF_BYTES, base, mixed, one, pair

TENSOR = {False: "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group",
          True: "cp.reduce.async.bulk.tensor.{}d.global.shared::cta.add.tile.bulk_group"}  # fmt: skip
BULK = {False: "cp.async.bulk.global.shared::cta.bulk_group",
        True: "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"}  # fmt: skip
STORE_TWO = {F32: ("st.shared.v2.f32", "float"), S32: ("st.shared.v2.s32", "int")}


def of_column(b: ir.Smem, element: str, chunk: str, size: int) -> str:
    """From a row's beginning to `element`, counted from the lane's own, which lies `chunk` bytes in."""
    slab = f"{element} / {b.slab_cols} * {b.slab_stride}"
    return f"{slab} + ({element} % {b.slab_cols}{f' * {size}' if size > 1 else ''} ^ {chunk})"


# ---- from registers to shared memory ----------------------------------------------------------------


def store_matrix(k: ir.Kernel, s: ir.StageTile) -> str:
    """Lanes 0 to 15 give the rows of the left two of four 8 x 8 matrices, 16 to 31 of the right two."""
    b, n, row = k.buffer(s.smem), held(k, s), "(warp * 16 + lane % 16)"
    chunk = f"uint32_t(lane / 16 * 16 ^ {mixed(b, row)})"
    at = f"{base(k, b, slot(s), row)} + {of_column(b, '2 * i', chunk, b.dtype.bytes)}"

    def stores(first: int, end: int, matrices: int) -> str:
        data = ", ".join(
            pair(b.dtype, f"value(i + {2 * j})", f"value(i + {2 * j + 1})") for j in range(matrices)
        )
        loop = f"for (int i = {first}; i < {end}; i += {2 * matrices})"
        return f'{UNROLL}{loop} "{MATRIX.format(matrices, "")}"([{at}], {{{data}}});'

    return epilogue_value(k, s) + stores(0, n // 8 * 8, 4) + stores(n // 8 * 8, n, 2)


def store_pairs(k: ir.Kernel, s: ir.StageTile) -> str:
    b, row = k.buffer(s.smem), "(warp * 16 + lane / 4)"
    chunk = f"uint32_t(lane % 4 * 8 ^ {mixed(b, row)})"
    at = f"{base(k, b, slot(s), row)} + {of_column(b, '2 * i', chunk, b.dtype.bytes)}"
    opcode, of = STORE_TWO[b.dtype]
    stores = " ".join(
        f'"{opcode}"([{at} + {8 * b.slab_bytes * j}], {{{of}(value(i + {2 * j})), {of}(value(i + {2 * j + 1}))}});'
        for j in range(2)
    )
    return f"{epilogue_value(k, s)}{UNROLL}for (int i = 0; i < {held(k, s)}; i += 4) {{ {stores} }}"


def store_byte_pairs(k: ir.Kernel, s: ir.StageTile) -> str:
    b, row = k.buffer(s.smem), "(warp * 16 + lane / 4)"
    chunk = f"uint32_t(lane % 4 * 2 ^ {mixed(b, row)})"
    at = f"{base(k, b, s.wave, row)} + {of_column(b, '2 * i', chunk, 1)}"
    stores = " ".join(
        f'"st.shared.b16"([{at} + {8 * b.slab_bytes * j}],'
        f" {PAIR_OF_BYTES}, {s.src}[i + {2 * j + 1}], {s.src}[i + {2 * j}]));"
        for j in range(2)
    )
    return f"{UNROLL}for (int i = 0; i < {count(k, s.src)}; i += 4) {{ {stores} }}"


def store_elements(k: ir.Kernel, s: ir.StageTile) -> str:
    b, row = k.buffer(s.smem), "(warp * 16 + lane / 4)"
    chunk = f"uint32_t(lane % 4 * {b.dtype.bytes} ^ {mixed(b, row)})"
    at = f"{base(k, b, s.wave, row)} + {of_column(b, '2 * i', chunk, b.dtype.bytes)}"
    stores = " ".join(
        one(b, f"{s.src}[i + {j}]", f"{at} + {8 * b.slab_bytes * j}") for j in range(2)
    )
    return f"{UNROLL}for (int i = 0; i < {count(k, s.src)}; i += 2) {{ {stores} }}"


# ---- from shared memory to D ------------------------------------------------------------------------


def tma_store(k: ir.Kernel, s: ir.TmaStore) -> str:
    """Unless the box begins past what the map ends at."""
    inner, outer = (f"{coord(c)}{way}" for c, way in zip(s.coords, shift(k, s), strict=False))
    b, m = k.buffer(s.smem), k.map(s.tensor_map)
    to = past_gaps(inner, m.heads) if m.heads.mid else inner
    places = ", ".join((to, outer, *map(coord, s.coords[2:])))
    at = f"{s.smem} + ({slot(s) * k.consumers} + warpgroup) * {b.stage_bytes} + {s.offset}"
    store = f'"{TENSOR[s.add].format(len(s.coords))}"([&{s.tensor_map}, {{{places}}}], [{at}]);'
    return f"if ({inner} < {folded(k, 'shape_n')} / {m.clip} * {m.clip}) {store}"


def past_gaps(column: str, heads: Heads) -> str:
    """Where in D a column of the product lies: a gap follows each head's left columns."""
    return (
        f"({column}) + (({column}) + {heads.right}) / ({heads.left} + {heads.right}) * {heads.mid}"
    )


def element_at(b: ir.Smem, block: str) -> str:
    """The address of row `row`, column `col`."""
    there = f"col / {b.slab_cols} * {b.slab_stride} + row * {b.slab_bytes}"
    inside = f"(col % {b.slab_cols} * {b.dtype.bytes} ^ {mixed(b, 'row')})"
    return f"{b.name} + ({block}) * {b.stage_bytes} + {there} + {inside}"


def store_rows(k: ir.Kernel, s: ir.StoreRows) -> str:
    b, p = k.buffer(s.smem), piece(k, s)
    pieces, each = b.cols * b.dtype.bytes // 16, 16 // b.dtype.bytes
    block = f"{slot(s) * k.consumers} + warpgroup"
    to = f"{of_group(k, s.tensor)} + (long long)({p.row} + row) * {s.tensor}_stride + {p.column} + col"
    if s.add:
        adds = " ".join(f"(to)[{j}] += $nth(x, {j});" for j in range(4)).replace("(to)", "to")
        read = f'const auto x = "ld.shared.v4.f32"({{$f, $f, $f, $f}}, [{element_at(b, block)}]);'
        move = f"const float* to = {to}; {read} {adds}"
    else:
        read = f'const auto x = "ld.shared.v4.b32"({{$r, $r, $r, $r}}, [{element_at(b, block)}]);'
        data = ", ".join(f"$nth(x, {j})" for j in range(4))
        move = f'{read} "st.global.v4.b32"([{to}], {{{data}}});'
    return (
        f"const int block = {block};"
        f"for (int i = threadIdx.x % 128; i < min({p.rows}, {end_of_rows(k)} - ({p.row})) * {pieces}; i += 128) {{"
        f" const int row = i / {pieces}, col = i % {pieces} * {each};"
        f" if ({p.column} + col + {each} <= {folded(k, 'shape_n')}) {{ {move} }} }}"
    )


def bulk_row_store(k: ir.Kernel, s: ir.BulkRowStore) -> str:
    b, p = k.buffer(s.smem), piece(k, s)
    size = f"min({p.columns}, {folded(k, 'shape_n')} - {p.column}) * {b.dtype.bytes} / 16 * 16"
    at = f"{s.smem} + block * {b.stage_bytes} + row * {b.row_bytes}"
    to = f"{of_group(k, s.tensor)} + (long long)({p.row} + row) * {s.tensor}_stride + {p.column}"
    return (
        f"const int block = {s.wave * k.consumers} + warpgroup, row = threadIdx.x % 128, bytes = {size};"
        f" if (row < {p.rows} && {p.row} + row < {end_of_rows(k)} && bytes > 0)"
        f' "{BULK[s.add]}"([{to}], [{at}], bytes);'
    )


def store_tail(k: ir.Kernel, s: ir.StoreTail) -> str:
    b, p = k.buffer(s.smem), piece(k, s)
    each, columns = 16 // b.dtype.bytes, folded(k, "shape_n")
    block = f"{slot(s) * k.consumers} + warpgroup"
    opcode, letter, of = TAIL[b.dtype.cuda]
    read = f'{of}("{opcode}"(${letter}, [{element_at(b, block)}]))'
    column = "col - first" if s.own else f"{p.column} + col"
    to = f"{of_group(k, s.tensor)}[(long long)({p.row} + row) * {s.tensor}_stride + {column}]"
    return (
        f"const int block = {block}, whole = {columns} / {each} * {each}, left = {columns} - whole,"
        f" first = whole - {p.column};"
        f" if (left > 0 && first >= 0 && first < {p.columns}) {{"
        f" for (int i = threadIdx.x % 128; i < {p.rows} * left; i += 128) {{"
        f" const int row = i / left, col = first + i % left;"
        f" if ({p.row} + row < {end_of_rows(k)}) {to} {'+=' if s.add else '='} {read}; }} }}"
    )


# How an element is read, by its C type: instruction, kind of register, type.
TAIL = {
    "float": ("ld.shared.f32", "f", "float"),
    "int": ("ld.shared.s32", "r", "int"),
    "uint16_t": ("ld.shared.u16", "h", "uint16_t"),
    "uint8_t": ("ld.shared.u8", "h", "uint8_t"),
}


def store_wait(k: ir.Kernel, s: ir.StoreWait) -> str:
    return f'"cp.async.bulk.wait_group{".read" * s.reads}"({s.pending});'


STAGES: dict[str, Callable[[ir.Kernel, ir.StageTile], str]] = {
    "matrix": store_matrix,
    "pairs": store_pairs,
    "byte_pairs": store_byte_pairs,
    "elements": store_elements,
    "matrix_transposed": store_matrix_transposed,
    "elements_transposed": store_elements_transposed,
    "folded_transposed": store_folded_transposed,
}
STORE_VALUES = {"sums": store_sums, "window": store_window, "outside": store_outside}
EPILOGUE: dict[type[ir.Stmt], Callable[[ir.Kernel, Any], str]] = {
    **VALUES,
    ir.StageTile: lambda k, s: STAGES[s.by](k, s),
    ir.StoreValues: lambda k, s: STORE_VALUES[s.of](k, s),
    ir.TmaStore: tma_store,
    ir.StoreRows: store_rows,
    ir.BulkRowStore: bulk_row_store,
    ir.StoreTail: store_tail,
    ir.StoreCommit: lambda k, s: '"cp.async.bulk.commit_group"();',
    ir.StoreWait: store_wait,
}
