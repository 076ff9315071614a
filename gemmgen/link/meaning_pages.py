"""What rows that come by page mean: see meaning."""

from __future__ import annotations

from ..ir import nodes as ir
from .meaning_waits import Meaning
from .parts import UNROLL


def load_pages(k: ir.Kernel, s: ir.LoadPages) -> str:
    number = f"min(tile.b_row / {s.rows} + i, (shape_n - 1) / {s.rows})"
    at = f"{s.tensor} + (long long)tile.group * pages_stride + {number}"
    page = f'int("ld.global.s32"($r, [{at}]))' if k.pdl else f"__ldg({at})"
    return f"{UNROLL}for (int i = 0; i < {s.count}; ++i) {{ {s.dst}[i] = {page}; }}"


PAGED: dict[type[ir.Stmt], Meaning] = {ir.LoadPages: load_pages}
