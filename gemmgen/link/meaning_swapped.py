"""What the statements of the epilogue mean where the accumulator's rows are D's columns: see meaning."""

from __future__ import annotations

from ..ir import nodes as ir
from ..ir.dtypes import BF16, F16
from ..ir.spelling import MINUS_INFINITY, epilogue_value, folded, of_group, window
from ..ir.stores import E4M3_MAX, LEAST_AMAX
from .parts import UNROLL, count, end_of_rows, registers
from .staging import MATRIX, base, mixed, one, pair


def store_matrix_transposed(k: ir.Kernel, s: ir.StageTile) -> str:
    """Lanes 8m to 8m + 7 give the rows of matrix m: of D's columns the first or second 8, and 8 rows on."""
    b, n = k.buffer(s.smem), count(k, s.src)
    row, column = "(lane / 16 * 8 + lane % 8)", "(warp * 16 + lane / 8 % 2 * 8)"
    there = f"{column} / {b.slab_cols} * {b.slab_stride}"
    inside = f"({column} % {b.slab_cols} * {b.dtype.bytes} ^ {mixed(b, row)})"
    at = f"{base(k, b, s.wave, row)} + {there} + {inside} + 2 * i * {b.slab_bytes}"

    def stores(first: int, end: int, matrices: int) -> str:
        data = ", ".join(
            pair(b.dtype, f"value(i + {2 * j})", f"value(i + {2 * j + 1})") for j in range(matrices)
        )
        loop = f"for (int i = {first}; i < {end}; i += {2 * matrices})"
        return f'{UNROLL}{loop} "{MATRIX.format(matrices, ".trans")}"([{at}], {{{data}}});'

    return epilogue_value(k, s) + stores(0, n // 8 * 8, 4) + stores(n // 8 * 8, n, 2)


def store_elements_transposed(k: ir.Kernel, s: ir.StageTile) -> str:
    b = k.buffer(s.smem)
    row, column = "(lane % 4 * 2)", "(warp * 16 + half * 8 + lane / 4)"
    there = f"{column} / {b.slab_cols} * {b.slab_stride}"
    byte = f"{column} % {b.slab_cols} * {b.dtype.bytes}"
    stores = ""
    for j, of in enumerate((row, f"({row} + 1)")):
        at = f"{base(k, b, s.wave, of)} + {there} + ({byte} ^ {mixed(b, of)}) + 2 * i * {b.slab_bytes}"
        stores += one(b, f"value(i + 2 * half + {j})", at)
    rows = f"{UNROLL}for (int i = 0; i < {count(k, s.src)}; i += 4) {{ {stores} }}"
    return f"{epilogue_value(k, s)}{UNROLL}for (int half = 0; half < 2; ++half) {{ {rows} }}"


# Where lanes 4 apart have exchanged rows, which of a warp's columns of D a lane has.
OF_PAIR = "(lane / 8 + lane / 4 % 2 * 4)"


def store_folded_transposed(k: ir.Kernel, s: ir.StageTile) -> str:
    b = k.buffer(s.smem)
    row, column = "(lane % 4 * 2)", f"(warp * 8 + {OF_PAIR})"
    there = f"{column} / {b.slab_cols} * {b.slab_stride}"
    byte = f"{column} % {b.slab_cols} * {b.dtype.bytes}"
    stores = ""
    for j, of in enumerate((row, f"({row} + 1)")):
        at = f"{base(k, b, s.wave, of)} + {there} + ({byte} ^ {mixed(b, of)}) + 4 * i * {b.slab_bytes}"
        stores += one(b, f"{s.src}[i + {j}]", at)
    return f"{UNROLL}for (int i = 0; i < {count(k, s.src)}; i += 2) {{ {stores} }}"


def store_sums(k: ir.Kernel, s: ir.StoreValues) -> str:
    """Each lane of a quad stores its own of four sums."""
    row, column = _of_sum(k, s)
    mine = f"{_own(k)}{row} < {end_of_rows(k)} && {column} < shape_n"
    store = f"if ({mine}) {_element(k, s.tensor, row, column)} = {_number(k, 'value(i)')};"
    return (
        f"{epilogue_value(k, s)}{UNROLL}for (int i = 0; i < {count(k, s.src)}; ++i) {{ {store} }}"
    )


def store_window(k: ir.Kernel, s: ir.StoreValues) -> str:
    """The same of what lies in the row's window: `at` columns from its first one, for which D has room."""
    (row, column), (first, end) = _of_sum(k, s), window(k, s)
    at = f"(uint32_t({column}) - uint32_t({first}))"  # of any two integers
    reached = f"{column} < min({end}, shape_n) && {column} >= {first} && {at} < uint32_t(d_room)"
    mine = f"{_own(k)}{row} < {end_of_rows(k)} && {reached}"
    store = f"if ({mine}) {_element(k, s.tensor, row, at)} = {_number(k, 'value(i)')};"
    return (
        f"{epilogue_value(k, s)}{UNROLL}for (int i = 0; i < {count(k, s.src)}; ++i) {{ {store} }}"
    )


def _of_sum(k: ir.Kernel, s: ir.StoreValues) -> tuple[str, str]:
    """Register i of lanes 0 and 1 is of row 2 i, of lanes 2 and 3 of the next; of even ones' of column c, of odd ones' of c + 8."""
    column = f"(tile.d_col + ({s.wave * k.consumers} + warpgroup) * 64 + warp * 16 + lane % 2 * 8 + lane / 4)"
    return "(tile.d_row + i * 2 + lane / 2 % 2)", column


def _own(k: ir.Kernel) -> str:
    """Of an odd number of rows the last has no next, which would be another tile's."""
    return f"i * 2 + lane / 2 % 2 < {k.block.d_m} && " if k.block.d_m % 2 else ""


def store_outside(k: ir.Kernel, s: ir.StoreValues) -> str:
    row, left = "(tile.d_row + i / 64)", f"({s.wave * k.consumers} + warpgroup) * 64"
    column = f"(tile.d_col + {left} + i % 64)"
    store = f"{_element(k, s.tensor, row, column)} = {_number(k, MINUS_INFINITY)};"
    return (
        f"for (int i = threadIdx.x % 128; i < {k.block.d_m} * 64; i += 128)"
        f" {{ if ({row} < {end_of_rows(k)} && {column} < shape_n) {store} }}"
    )


def _element(k: ir.Kernel, tensor: str, row: str, column: str) -> str:
    return f"{of_group(k, tensor)}[(long long){row} * {tensor}_stride + {column}]"


def _number(k: ir.Kernel, x: str) -> str:
    """`x` as D has it."""
    t = k.buffer("smem_d").dtype
    return f"uint16_t({pair(t, x, '0')})" if t in (BF16, F16) else f"float({x})"


def evaluate_pairs(k: ir.Kernel, s: ir.Evaluate) -> str:
    """Of every four registers two are of a row, two of the row 8 below. A lane of an odd row gives the first to the lane 4 before it,
    whose second it takes."""
    n, of = count(k, s.src), "int" if registers(k, s.src).dtype.integer else "float"
    mine = [f"{s.src}[i / 4 * 4 + i / 2 % 2{plus}]" for plus in ("", " + 2")]
    given = f"__shfl_xor_sync(0xffffffff, lane / 4 % 2 ? {mine[0]} : {mine[1]}, 4)"
    first = f"pairs[i] = lane / 4 % 2 ? {given} : {mine[0]};"
    second = f"pairs[i + 1] = lane / 4 % 2 ? {mine[1]} : {given};"
    exchange = f"{of} pairs[{n}];{UNROLL}for (int i = 0; i < {n}; i += 2) {{ {first} {second} }}"
    loop = f"{UNROLL}for (int i = 0; i < {n}; i += 2) {s.dst}[i / 2] = value(i);"
    return f"{exchange}{epilogue_value(k, s)}{loop}"


def row_of(k: ir.Kernel) -> str:
    """Of a lane's rows of D the one that value i is of, where the accumulator's rows are D's columns."""
    return {1: "(i / 4 * 2 + i % 2)", 2: "i"}[k.block.fold]


def row_amax_columns(k: ir.Kernel, s: ir.RowAmax) -> str:
    own = {1: "warp * 16 + i / 2 % 2 * 8 + lane / 4", 2: f"warp * 8 + {OF_PAIR}"}[k.block.fold]
    first = f"({s.wave * k.consumers} + warpgroup) * {64 // k.block.fold}"
    inside = f"tile.d_col + {first} + {own} < {folded(k, 'shape_n')}"
    to = f"{s.dst}[{row_of(k)}]"
    raised = f"{to} = fmaxf({to}, fabsf(float({inside} ? {s.src}[i] : 0.0f)));"
    return f"{UNROLL}for (int i = 0; i < {count(k, s.src)}; ++i) {raised}"


def share_amax(k: ir.Kernel, s: ir.ShareAmax) -> str:
    """Lanes that are 4, 8 and 16 apart have the same rows of D."""
    x = f"{s.src}[i]"
    for apart in (4, 8, 16):
        x = f"fmaxf({x}, __shfl_xor_sync(0xffffffff, {x}, {apart}))"
    at = f"{s.smem} + warp * {k.buffer(s.smem).row_bytes} + (i / 2 * 8 + lane * 2 + i % 2) * 4"
    store = f'if (lane < 4) "st.shared.f32"([{at}], float(x));'
    return f"{UNROLL}for (int i = 0; i < {count(k, s.src)}; ++i) {{ const float x = {x}; {store} }}"


def take_amax(k: ir.Kernel, s: ir.TakeAmax) -> str:
    b, at = k.buffer(s.smem), f"{s.smem} + (i / 2 * 8 + lane % 4 * 2 + i % 2) * 4"
    of = [f'float("ld.shared.f32"($f, [{at} + {w * b.row_bytes}]))' for w in range(b.rows)]
    read = " ".join(f"const float x{w} = {x};" for w, x in enumerate(of))
    most = f"fmaxf(fmaxf(fmaxf(x0, x1), fmaxf(x2, x3)), {LEAST_AMAX}f)"
    return f"{UNROLL}for (int i = 0; i < {count(k, s.dst)}; ++i) {{ {read} {s.dst}[i] = {most}; }}"


def store_scales_columns(k: ir.Kernel, s: ir.StoreScales) -> str:
    row, block = "tile.d_row + i / 2 * 8 + lane * 2 + i % 2", "(tile.d_col / 128)"
    there = f"warp == 0 && lane < 4 && {row} < {end_of_rows(k)} && {block} * 128 < {folded(k, 'shape_n')}"
    at = f"{of_group(k, s.tensor)}[(long long){block} * {s.tensor}_stride + {row}]"
    store = f"if ({there}) {at} = __fdiv_rn({s.src}[i], {E4M3_MAX}f);"
    return f"{UNROLL}for (int i = 0; i < {count(k, s.src)}; ++i) {{ {store} }}"


def normalise_columns(k: ir.Kernel, s: ir.Normalise) -> str:
    times = f"{s.dst}[i] *= __fdiv_rn({E4M3_MAX}f, {s.amax}[{row_of(k)}]);"
    return f"{UNROLL}for (int i = 0; i < {count(k, s.dst)}; ++i) {times}"
