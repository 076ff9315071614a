"""What rows that come by index mean: see meaning."""

from __future__ import annotations

from ..ir import nodes as ir
from .meaning_waits import Meaning
from .parts import UNROLL, coord, count

ROW_BYTES, PIECE_BYTES, THREADS = 128, 16, 128
PIECES = ROW_BYTES // PIECE_BYTES
AT_ONCE = THREADS // PIECES
COPY = "cp.async.cg.shared.global.L2::128B"
MY_ROW, MY_PIECE = f"threadIdx.x % {THREADS} / {PIECES}", f"threadIdx.x % {PIECES}"


def load_indices(k: ir.Kernel, s: ir.LoadIndices) -> str:
    """Unsigned, so that -1 is behind all rows that there are."""
    row = f"tile.a_row + {MY_ROW} + {AT_ONCE} * i"
    at = f"{s.tensor} + min({row}, shape_m - 1)"
    index = f'"ld.global.s32"($r, [{at}])' if k.pdl else f"__ldg({at})"
    source = f"uint32_t({row} < shape_m ? index : -1) / uint32_t(top)"
    known = f"{s.dst}[i] = {source} < uint32_t(sources) ? int({source}) : -1;"
    return f"{UNROLL}for (int i = 0; i < {count(k, s.dst)}; ++i) {{ const int index = {index}; {known} }}"


def copy_rows(k: ir.Kernel, s: ir.CopyRows) -> str:
    """A piece's place in its row is its number, and its row's in eight, bit by bit."""
    smem = k.buffer(s.smem)
    at = f"({coord(s.k)} + {MY_PIECE} * {PIECE_BYTES // smem.dtype.bytes})"
    place = f"({MY_ROW}) * {ROW_BYTES} + ({MY_PIECE} ^ {MY_ROW} % {PIECES}) * {PIECE_BYTES}"
    to = f"{s.smem} + ring.stage * {smem.stage_bytes} + {place} + {AT_ONCE * ROW_BYTES} * i"
    row = "source"
    source = f"{s.tensor} + (long long){row} * {s.tensor}_stride_m + {at}"
    size = f"{row} >= 0 ? min(max(shape_k - {at}, 0) * {smem.dtype.bytes}, {PIECE_BYTES}) : 0"
    there = f"if ({MY_ROW} + {AT_ONCE} * i < {smem.rows}) " * (smem.rows % AT_ONCE > 0)
    mine = f"const int {row} = $opaque({s.indices}[i]);"
    copy = f'{mine} {there}"{COPY}"([{to}], [{source}], {PIECE_BYTES}, {size});'
    each = f"{UNROLL}for (int i = 0; i < {count(k, s.indices)}; ++i) {{ {copy} }}"
    begun = f"{s.begun}[0] = min({s.begun}[0] + 1, {s.most});"
    return f'{each} "cp.async.commit_group"(); {begun}'


INDEXED: dict[type[ir.Stmt], Meaning] = {
    ir.LoadIndices: load_indices,
    ir.CopyRows: copy_rows,
    ir.WaitCopies: lambda k, s: f'"cp.async.wait_group"({s.pending});',
}
