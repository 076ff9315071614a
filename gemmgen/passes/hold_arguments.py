"""Where a row of D is the sum of some of the product's, read what its epilogue is given before the tile's K blocks come."""

from __future__ import annotations

from dataclasses import replace

from ..ir.dtypes import F32, S32
from ..ir.expr import Argument, PerColumn, PerRow, RowBound, arguments
from ..ir.nodes import Evaluate, If, Kernel, Registers, Role, Stmt, StoreValues, TileBody
from ..ir.rewrite import map_body, map_role, walk
from ..target import Target


def hold_arguments(kernel: Kernel, target: Target) -> Kernel:
    """What differs between rows or columns is a thread's for all of its wave, or of all waves, and few registers: loads of it go on while
    the tile is multiplied, and each is made once, of rows once for a run of tiles. Sets `held` of what evaluates and stores sums; inserts
    what reads, and its registers."""
    if kernel.block.fold_rows == 1:
        return kernel
    return map_role(kernel, "consumer", lambda r: _holding(r, kernel.block.fold_rows))


def _holding(role: Role, fold: int) -> Role:
    found = [s for s in walk(role.body) if isinstance(s, Evaluate | StoreValues)]
    reads: dict[str, Evaluate] = {}
    for s in found:
        for x in arguments(s.value):
            if isinstance(x, PerRow | RowBound | PerColumn):
                dst = _registers(x, s.wave)
                reads.setdefault(dst, Evaluate(dst=dst, wave=s.wave, value=x, of="argument"))
    sums = {s.dst for s in found if isinstance(s, Evaluate)}
    rows = max(r.count for r in role.locals if r.name in sums) // 2
    counts = {PerRow: rows * fold // 4, RowBound: rows, PerColumn: 2}
    registers = tuple(
        Registers(
            name=name,
            dtype=S32 if isinstance(s.value, RowBound) else F32,
            count=counts[type(s.value)],
        )
        for name, s in reads.items()
    )
    of_columns = tuple(s for s in reads.values() if isinstance(s.value, PerColumn))
    of_rows = tuple(s for s in reads.values() if s not in of_columns)
    first = If(when="new_run", body=of_rows)
    each = (If(when="has_blocks", body=of_columns),) * bool(of_columns)

    def visit(s: Stmt) -> Stmt:
        match s:
            case Evaluate() | StoreValues():
                held = ((x.name, _registers(x, s.wave)) for x in arguments(s.value))
                return replace(s, held=tuple(x for x in held if x[1] in reads))
            case TileBody():
                return replace(s, setup=(*s.setup, first, *each))
        return s

    return replace(role, locals=(*role.locals, *registers), body=map_body(role.body, visit))


def _registers(x: Argument, wave: int) -> str:
    """Columns are a wave's own, rows all waves' alike."""
    return f"{x.name}{wave}_held" if isinstance(x, PerColumn) else f"{x.name}_held"
