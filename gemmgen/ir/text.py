"""The text form of a kernel: what `gemmgen emit --dump` prints and the IR goldens hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from .arrivals import NO_ARRIVALS
from .blocks import BLOCKS, Parts, Stmt
from .dtypes import DType
from .expr import (
    Acc,
    BinOp,
    Call,
    Const,
    DeviceScalar,
    Expr,
    InGroup,
    InWindow,
    OfPair,
    OfRows,
    PerColumn,
    PerElement,
    PerRow,
    RowBound,
    Scalar,
)
from .orders import PANELS
from .packed import Form
from .resources import ONE_GEMM, Coord, Registers, Wgmma
from .walks import NO_PEERS, NO_WORKSPACE

if TYPE_CHECKING:
    from .kernel import Kernel  # which prints itself


def dump(kernel: Kernel) -> str:
    """Resources as tables, then prologue and roles as indented statements. Unset fields print as ?."""
    b, c, s = kernel.block, kernel.cluster, kernel.scheduler
    lines = [
        f"kernel {kernel.name}",
        f"  block m={b.m} n={b.n} k={b.k}{f' fold={b.fold}' * (b.fold > 1)}{f' fold_rows={b.fold_rows}' * (b.fold_rows > 1)}{' one_block' * b.one_block}  threads {kernel.threads}  smem {_value(kernel.smem_bytes)} B",
        f"  cluster {c.size}"
        + (f" sharing {c.shared}" if c.shared else " splitting K" * (c.k > 1)),
        f"  scheduler {s.name} fast={s.fast} slow={s.slow} panel={s.panel}"
        + f" order={s.order}" * (s.order != PANELS)
        + "".join(f" {p}" for p in s.params)
        + " streaming K" * s.streams
        + " summing groups" * s.summed,
        *[f"  workspace {_fields(kernel.workspace)} per CTA"] * (kernel.workspace != NO_WORKSPACE),
        *[f"  peers {_fields(kernel.peers)} per tile"] * (kernel.peers != NO_PEERS),
        *[f"  arrivals {_fields(kernel.arrivals)}"] * (kernel.arrivals != NO_ARRIVALS),
        *[f"  groups {_fields(kernel.groups)}"] * (kernel.groups != ONE_GEMM),
        *[f"  sums K in {kernel.shares} shares"] * (kernel.shares > 1),
        *[f"  {kernel.per_sm} CTAs share an SM"] * (kernel.per_sm > 1),
        *["  keeps the address of shared memory"] * kernel.keeps_address,
        *["  overlaps the launch before"] * kernel.pdl,
        *[f"  ready {' '.join(kernel.ready)}"] * bool(kernel.ready),
        *[f"  keeps {kernel.stamps} stamps of each warpgroup"] * bool(kernel.stamps),
        f"  {_product(kernel)}",
    ]
    for title, table in (
        ("maps", kernel.maps),
        *[("pointed", kernel.pointed)] * bool(kernel.pointed),
        ("params", kernel.params),
        ("smem", kernel.smem),
        ("barriers", kernel.barriers),
    ):
        lines += [f"{title}:", *(f"  {_fields(x)}" for x in table)]
    lines += ["prologue:", *_body(kernel.prologue, 1)]
    for r in kernel.roles:
        first, end = r.warpgroups
        lines.append(
            f"role {r.name}: warpgroups {first}..{end - 1}{' in turns' * (r.turns > 1)}{' in slices of K' * (r.slices > 1)}, registers {_value(r.registers)}"
        )
        lines += [f"  local {x.name}: {x.dtype}[{x.count}]{_transient(x)}" for x in r.locals]
        lines += _body(r.body, 1)
    return "\n".join(lines) + "\n"


def _product(kernel: Kernel) -> str:
    """What multiplies; without a ring fragments of it, by mma.sync."""
    w = kernel.instr
    if not kernel.ring:
        return f"mma.sync m16n8 of m64n{w.n} {w.d.ptx} {w.a.ptx} {w.b.ptx}"
    return f"wgmma {w.mnemonic}{_majors(w)}"


def _transient(x: Registers) -> str:
    return " transient" * x.transient


def smem_map(kernel: Kernel) -> list[tuple[int, int, str]]:
    """(first byte, end, what) of everything in shared memory, in address order."""
    buffers = [(s.offset or 0, s.stage_bytes, s.copies * s.stages, s.name) for s in kernel.smem]
    barriers = [(b.offset or 0, 8, b.stages, b.name) for b in kernel.barriers]
    parts = sorted(buffers + barriers)
    return [(at, at + size * n, f"{name} {n} x {size} B") for at, size, n, name in parts]


def statement(stmt: Stmt) -> str:
    """One statement on one line, without its body."""
    return f"{type(stmt).__name__} {_fields(stmt)}".rstrip()


def _body(body: tuple[Stmt, ...], depth: int) -> Iterator[str]:
    for stmt in body:
        if isinstance(stmt, Parts):
            yield from _body(stmt.body, depth)
            continue
        yield "  " * depth + statement(stmt)
        if isinstance(stmt, BLOCKS):
            yield from _body(stmt.body, depth + 1)


def _fields(node: object) -> str:
    shown = [(f, getattr(node, f.name)) for f in fields(node) if f.name != "body"]  # type: ignore[arg-type]
    shown = [(f, v) for f, v in shown if not f.metadata.get("unusual") or v != f.default]
    return " ".join(v if f.name == "name" else f"{f.name}={_value(v)}" for f, v in shown)


def _value(v: object) -> str:
    match v:
        case None:
            return "?"
        case Coord():
            return _coord(v)
        case DType():
            return v.name
        case Form():
            return f"{v.format}:{v.to}"
        case Wgmma():
            return f"m64n{v.n}k{v.k}{_majors(v)}"
        case Expr():
            return expression(v)
        case tuple():
            return "(" + ", ".join(map(_value, v)) + ")"
        case int() if v >= 1 << 32:
            return hex(v)
    return str(v)


def _majors(w: Wgmma) -> str:
    """K-major operands are not shown."""
    return "".join(f" {name}={major}" for name, major in w.majors.items())


def _coord(c: Coord) -> str:
    text = c.base if c.scale == 1 else f"{c.base}*{c.scale}"
    text = f"{c.start}+{text}" if c.start else text
    text = f"{c.of}({text})" if c.of else text
    text += f"+{c.offset}" if c.offset else ""
    text += f"+rank*{c.rank_step}" if c.rank_step else ""
    return f"{text} in heads {c.heads}" if c.heads.mid else text


def expression(e: Expr) -> str:
    """As one would write it: max((acc + bias[col]), 0.0)."""
    match e:
        case Acc():
            return "acc"
        case Const(value):
            return repr(value)
        case Scalar(name):
            return name
        case DeviceScalar(name):
            return f"{name}[0]"
        case PerColumn(name):
            return f"{name}[col]"
        case PerRow(name):
            return f"{name}[row]"
        case PerElement(name, dtype):
            return f"{name}.{dtype}[row, col]"
        case BinOp(op, lhs, rhs):
            return f"({expression(lhs)} {op} {expression(rhs)})"
        case InGroup(value, groups):
            return f"in_group({expression(value)}, {groups}[row])"
        case OfPair(value, which):
            return f"{('even', 'odd')[which]}({expression(value)})"
        case RowBound(name):
            return f"{name}[row]"
        case OfRows(value, rows):
            return f"sum_of_{rows}_rows({expression(value)})"
        case InWindow(value, first, end):
            begins = expression(first) if first else "0"
            return f"in_window({expression(value)}, {begins}, {expression(end)})"
        case Call(function, args):
            return f"{function}({', '.join(map(expression, args))})"
    return repr(e)
