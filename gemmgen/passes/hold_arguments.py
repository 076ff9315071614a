"""Where a row of D is the sum of some of the product's, read what its epilogue is given before the tile's K blocks come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..ir.dtypes import F32, S32
from ..ir.expr import Argument, Expr, PerColumn, PerRow, RowBound, arguments
from ..ir.nodes import Evaluate, If, Kernel, Registers, Role, Stmt, StoreValues, TileBody
from ..ir.rewrite import map_body, map_role, walk
from ..target import Target

# Of registers, by the argument and by who reads it.
Counts = Mapping[tuple[type[Expr], type[Stmt]], int]


def hold_arguments(kernel: Kernel, target: Target) -> Kernel:
    """What differs between rows or columns is a thread's for all of its wave, or of all waves, and few registers: loads of it go on while
    the tile is multiplied, and each is made once, of rows once for a run of tiles. Sets `held` of what evaluates and stores sums; inserts
    what reads, and its registers."""
    if kernel.block.fold_rows == 1:
        return kernel
    rows = kernel.block.d_m
    counts: Counts = {  # a lane adds up two columns, and has one of every four sums
        (PerRow, Evaluate): rows * kernel.block.fold_rows // 4,
        (PerColumn, Evaluate): 2,
        (PerColumn, StoreValues): 1,
        (RowBound, StoreValues): (rows + 1) // 2,
    }
    return map_role(kernel, "consumer", lambda r: _holding(r, counts))


def _holding(role: Role, counts: Counts) -> Role:
    found = [s for s in walk(role.body) if isinstance(s, Evaluate | StoreValues)]
    reads: dict[str, Evaluate] = {}
    registers: dict[str, Registers] = {}
    for s in found:
        for x in arguments(s.value):
            if (type(x), type(s)) in counts:
                dst, dtype = _registers(x, s), S32 if isinstance(x, RowBound) else F32
                reads.setdefault(dst, Evaluate(dst=dst, wave=s.wave, value=x, of="argument"))
                count = counts[type(x), type(s)]
                registers[dst] = Registers(name=dst, dtype=dtype, count=count)
    of_columns = tuple(s for s in reads.values() if isinstance(s.value, PerColumn))
    of_rows = tuple(s for s in reads.values() if s not in of_columns)
    each = (If(when="has_blocks", body=of_columns),) * bool(of_columns)

    def visit(s: Stmt) -> Stmt:
        match s:
            case Evaluate() | StoreValues():
                held = ((x.name, _registers(x, s)) for x in arguments(s.value))
                return replace(s, held=tuple(x for x in held if x[1] in reads))
            case TileBody():
                return replace(s, run=of_rows, setup=(*s.setup, *each))
        return s

    return replace(
        role, locals=(*role.locals, *registers.values()), body=map_body(role.body, visit)
    )


def _registers(x: Argument, s: Evaluate | StoreValues) -> str:
    """Columns are a wave's own, those of sums and those that are added up; rows all waves' alike."""
    if not isinstance(x, PerColumn):
        return f"{x.name}_held"
    return f"{x.name}{s.wave}_{'added' if isinstance(s, Evaluate) else 'held'}"
