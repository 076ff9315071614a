"""What statements of operands mean that go straight into registers: see meaning."""

from __future__ import annotations

from ..ir import nodes as ir
from ..ir.dtypes import DType
from ..ir.spelling import of_group
from .meaning_waits import Meaning
from .parts import UNROLL, count, rows_of_a

PAIR = "cvt.rn.f16x2.{}x2"


def words(k: ir.Kernel) -> int:
    """Registers of a row of a K block: a lane has a quarter of its bytes."""
    return k.block.k * k.instr.a.bytes // 4 // 4


def load_fragments(k: ir.Kernel, s: ir.LoadFragments) -> str:
    """Register 4 * (n * j + p) + w is word w of piece p, of n, of the lane's row in eight j."""
    n, element = words(k), 8 * k.instr.a.bytes
    of_row, begins, block = source(k, s)
    nc, once = "" if k.pdl else ".nc", ".L1::no_allocate.L2::256B" if s.of == "rows" else ""
    opcode = f"ld.global{nc}{once}.v4.b32"
    out = []
    for p in range(n // 4):
        on = p * 512 // element
        held = [f"{s.dst}[i * {n} + {4 * p + w}]" for w in range(4)]
        there = f'"setp.lt.s32"($pred, {begins} + {on}, ({block}) < tile.k_blocks ? shape_k : 0)'
        load = f'"{opcode}"({{$r, $r, $r, $r}}, [{of_row} + {begins} + {on}])'
        sets = " ".join(f"{x} = $nth(x, {w});" for w, x in enumerate(held))
        out.append(f'{{ const auto x = $given({there}, {load}, "mov.b32"($r, 0)); {sets} }}')
    return f"{UNROLL}for (int i = 0; i < {count(k, s.dst) // n}; ++i) {{ {' '.join(out)} }}"


def source(k: ir.Kernel, s: ir.LoadFragments) -> tuple[str, str, str]:
    """The lane's row of eight i, the element of K where its first piece begins, and the K block's number."""
    row = {
        "rows": f"tile.{s.tensor}_row + warpgroup * 64 + warp * 16",
        "columns": f"tile.{s.tensor}_row",
    }[s.of]
    rows, side = {"a": (rows_of_a(k), "m"), "b": ("shape_n", "n")}[s.tensor]
    block = f"k + {s.distance}" if s.block == "next" else f"{s.distance}"
    start = "tile.k_first + " if k.cluster.k > 1 else ""
    of_row = f"{of_group(k, s.tensor)} + (long long)min({row} + lane / 4 + 8 * i, {rows} - 1) * {s.tensor}_stride_{side}"
    return of_row, f"{start}({block}) * {k.block.k} + lane % 4 * {16 // k.instr.a.bytes}", block


def slot(k: ir.Kernel, s: ir.LoadFragments, block: str) -> str:
    """This thread's first 16 bytes of the K block: a piece of every thread, then the next; the rows' before the columns'."""
    buffer = k.buffer(s.smem)
    before = 2 * words(k) // 4 * 2048 if s.of == "columns" else 0
    turn = f"({block}) % {buffer.stages} * {buffer.stage_bytes}"
    return f"{s.smem} + {turn} + {before} + threadIdx.x * 16"


def copy_fragments(k: ir.Kernel, s: ir.LoadFragments) -> str:
    """What lies past K is not read; nothing of a K block past the tile's last comes at all."""
    n, element = words(k), 8 * k.instr.a.bytes
    of_row, begins, block = source(k, s)
    opcode = {"rows": "cp.async.cg.shared.global.L2::256B", "columns": "cp.async.ca.shared.global"}
    eights = {"rows": 2, "columns": k.instr.n // 8}[s.of]
    out = []
    for p in range(n // 4):
        on = p * 512 // element
        to = f"{slot(k, s, block)} + (i * {n // 4} + {p}) * 2048"
        size = f"{begins} + {on} < shape_k ? 16 : 0"
        out.append(f'"{opcode[s.of]}"([{to}], [{of_row} + {begins} + {on}], 16, {size});')
    each = f"{UNROLL}for (int i = 0; i < {eights}; ++i) {{ {' '.join(out)} }}"
    return f'if ({block} < tile.k_blocks) {{ {each} }} "cp.async.commit_group"();'


def read_fragments(k: ir.Kernel, s: ir.LoadFragments) -> str:
    read = f'"ld.shared.v4.s32"({{$r, $r, $r, $r}}, [{slot(k, s, f"k + {s.distance}")} + 512 * i])'
    sets = " ".join(f"{s.dst}[i + {w}] = $nth(x, {w});" for w in range(4))
    each = f"for (int i = 0; i < {count(k, s.dst)}; i += 4) {{ const auto x = {read}; {sets} }}"
    return f'"cp.async.wait_group"({s.pending}); {UNROLL}{each}'


LOADS_BY = {"load": load_fragments, "copy": copy_fragments, "read": read_fragments}


def multiply_fragments(k: ir.Kernel, s: ir.MultiplyFragments) -> str:
    """A's registers: row r and row r + 8 of the first half of K, then of the second; B's: its row's halves."""
    n, w = words(k), k.instr
    out = []
    for at in range(0, n, 2 if s.by == "words" else 1):
        if s.by == "words":
            a = [f"{s.row_fragments}[{r * n + at + half}]" for half in (0, 1) for r in (0, 1)]
            b = [f"{s.column_fragments}[i * {n} + {at + half}]" for half in (0, 1)]
        else:
            a = [
                half_of(w.a, f"{s.row_fragments}[{r * n + at}]", h) for h in (0, 1) for r in (0, 1)
            ]
            b = [half_of(w.b, f"{s.column_fragments}[i * {n} + {at}]", h) for h in (0, 1)]
        of = w.a.ptx if s.by == "words" else "f16"
        opcode = f"mma.sync.aligned.m16n8k16.row.col.f32.{of}.{of}.f32"
        d = [f"{s.dst}[4 * i + {j}]" for j in range(4)]
        operands = (("$f",) * 4, a, b, d)
        lists = ", ".join(f"{{{', '.join(x)}}}" for x in operands)
        sets = " ".join(f"{x} = $nth(x{at}, {j});" for j, x in enumerate(d))
        out.append(f'const auto x{at} = "{opcode}"({lists}); {sets}')
    return f"{UNROLL}for (int i = 0; i < {w.n // 8}; ++i) {{ {' '.join(out)} }}"


def half_of(of: DType, word: str, half: int) -> str:
    """Two of a word's four elements, as FP16."""
    bits = f"uint16_t({word} >> 16)" if half else f"uint16_t({word})"
    return f'"{PAIR.format(of.ptx)}"($r, {bits})'


FRAGMENTS: dict[type[ir.Stmt], Meaning] = {
    ir.LoadFragments: lambda k, s: LOADS_BY[s.by](k, s),
    ir.MultiplyFragments: multiply_fragments,
}
