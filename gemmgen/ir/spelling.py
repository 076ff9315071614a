"""Epilogues in C: the value of each element, and where what it reads begins."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..errors import IRError
from .argument_names import group_stride, local, parameter, row_stride
from .dtypes import BF16, F16, F32
from .expr import (
    Acc,
    Argument,
    BinOp,
    Call,
    Const,
    DeviceScalar,
    Expr,
    InGroup,
    InWindow,
    OfPair,
    PerColumn,
    PerElement,
    PerRow,
    RowBound,
    Scalar,
    walk,
)
from .fp32 import fp32
from .nodes import Evaluate, Kernel, StageTile, StoreValues
from .pages import COUNT, PAGES, PITCH
from .places import Place, of_pair, place, rows_of_d
from .row_sums import windows
from .stores import reads

C_FUNCTIONS = {
    "exp": "__expf",
    "tanh": "tanhf",
    "erf": "erff",
    "divide": "__fdividef",
    "max": "fmaxf",
    "min": "fminf",
}

# How a kernel reads what it never writes, by `Kernel.pdl`. Where nobody else writes that either while the kernel runs, the compiler and
# the hardware may know (ld.global.nc). A launch that overlaps the one before runs while that may still write: its loads are coherent.
READS = {
    False: {"float": "__ldg", "int": "__ldg"},
    True: {"float": "ptx::load_global_float", "int": "ptx::load_global_int"},
}
# The same in epilogues, where one load serves many elements. What keeps it behind the wait is its pointer, made opaque there.
READS_ONCE = {
    False: READS[False],
    True: {"float": "ptx::load_once_float", "int": "ptx::load_once_int"},
}
MINUS_INFINITY = "__uint_as_float(0xff800000)"
LOADS = {BF16: "ptx::element_bf16", F16: "ptx::element_f16", F32: "ptx::element_f32"}


def folded(kernel: Kernel, columns: str) -> str:
    """`columns` of the product, an expression, in columns of D."""
    return columns if kernel.block.fold == 1 else f"{columns} / {kernel.block.fold}"


PAIRS = (
    "pairs"  # what lanes have after they exchanged rows: of one column of D two of the product's
)


def epilogue_value(kernel: Kernel, s: StageTile | StoreValues | Evaluate) -> str:
    """A lambda from an accumulator's register index (of a pair's first, if they are folded) to the
    FP32 value to store."""
    integers = [r.dtype.integer for role in kernel.roles for r in role.locals if r.name == s.src]
    to_float = any(integers) and not kernel.buffer("smem_d").dtype.integer

    src = PAIRS if isinstance(s, Evaluate) and s.of == "pairs" else s.src

    def element(i: str) -> str:
        return f"float({src}[{i}])" if to_float else f"{src}[{i}]"

    # Opaque copies of the pointers: what one wave loads is not kept in registers for the next.
    kinds = POINTERS[kernel.pdl]
    pointers = [x for x in reads(s) if isinstance(x, kinds)]
    lines = [f"const auto {local(x.name)} = ptx::opaque({_pointer(kernel, x)});" for x in pointers]
    tables = sorted({x.groups for x in walk(s.value) if isinstance(x, InGroup)}) * kernel.pdl
    lines += [f"const auto {table(x, True)} = ptx::opaque({x});" for x in tables]
    if kernel.groups.pages and any(isinstance(x, PerColumn) for x in pointers):
        lines += _of_pages(kernel)
    at = place(kernel, s)
    value = c_expr(s.value, element, at, kernel.pdl, bool(kernel.groups.pages))
    pace = 0 if isinstance(s, StoreValues) else s.pace
    value = f"ptx::paced<{pace}>({value}, i)" if pace else value
    lines.append(f"const auto value = [&](int i) {{ return {value}; }};")
    return "\n".join(lines)


def window(kernel: Kernel, s: StoreValues, i: object = "i") -> tuple[str, ...]:
    """In registers, where the windows of the row of `s.src`'s register i begin and end: as many as its value has bounds."""
    at = place(kernel, s)
    return tuple(at.held[x.name].replace("[i]", f"[{i}]") for x in windows(s.value))


# Arguments that are read through a copy of their pointer, by `Kernel.pdl`.
IN_VECTORS = (PerColumn, PerRow, PerElement, RowBound)
POINTERS = {False: IN_VECTORS, True: (*IN_VECTORS, DeviceScalar)}


def table(name: str, pdl: bool) -> str:
    """What an epilogue reads a table of groups through."""
    return {False: name, True: f"table_{name}"}[pdl]


def of_group(kernel: Kernel, tensor: str) -> str:
    """Where the tile's group of `tensor` begins; the tensor itself if it has no groups."""
    return _of_group(kernel, tensor, f"{tensor}_stride_g")


def _of_group(kernel: Kernel, tensor: str, stride: str) -> str:
    grouped = any(p.name == stride for p in kernel.params)
    return f"({tensor} + tile.group * {stride})" if grouped else tensor


def _pointer(kernel: Kernel, x: Argument) -> str:
    """Where the tile's group of an argument begins: vectors lie one behind the other."""
    name = parameter(x.name)
    if isinstance(x, DeviceScalar):
        return name
    if isinstance(x, PerElement):
        return _of_group(kernel, name, group_stride(x.name))
    by_depth = bool(kernel.groups.depths)
    sides = {
        PerRow: ("shape_m", kernel.groups.rows or by_depth),
        RowBound: (rows_of_d(kernel), kernel.groups.rows),
        PerColumn: ("shape_n", (kernel.groups.columns and not kernel.groups.pages) or by_depth),
    }
    side, grouped = sides[type(x)]
    return f"{name} + (long long)tile.group * {side}" if grouped else name


def c_number(value: float) -> str:
    """FP32(value) in C. A compiler rounds the text once, Python rounded it to `value` before: where a neighbour
    of `value` rounds elsewhere, the text is that of the FP32 number itself."""
    near = (value, math.nextafter(value, -math.inf), math.nextafter(value, math.inf))
    shown = value if len({fp32(x) for x in near}) == 1 else fp32(value)
    return f"{shown!r}f"


def _of_pages(kernel: Kernel) -> tuple[str, ...]:
    """A function of what lies in pages of so many columns, `pitch` apart; 0 in one that is none."""
    read = READS_ONCE[kernel.pdl]
    return (
        f"const auto numbers = ptx::opaque({PAGES}) + (long long)tile.group * {PITCH};",
        "const auto of_page = [&](const float* x, long long pitch, int column) {",
        f"    const int number = {read['int']}(numbers + column / {kernel.groups.pages});",
        f"    const auto at = x + number * pitch + column % {kernel.groups.pages};",
        f"    const bool there = uint32_t(number) < uint32_t({COUNT});",
        f"    const float found = there ? {read['float']}(at) : 0.0f;",
        "    return found;",
        "};",
    )


def c_expr(e: Expr, acc: Callable[[str], str], at: Place, pdl: bool, in_pages: bool) -> str:
    """`e` in C at a register's place. Rows and columns are clamped, since a tile may reach past the
    tensor's edge. pdl: `Kernel.pdl`. in_pages: what is per column lies in pages."""
    read = READS_ONCE[pdl]

    def c(x: Expr) -> str:
        return c_expr(x, acc, at, pdl, in_pages)

    match e:
        case Argument(name) if name in at.held:
            return at.held[name]
        case Acc():
            return acc(at.register)
        case OfPair(value, column):
            return c_expr(value, acc, of_pair(at, column), pdl, in_pages)
        case Const(value):
            return c_number(value)
        case Scalar(name):
            return parameter(name)
        case DeviceScalar(name):
            pointer = {False: parameter(name), True: local(name)}[pdl]
            return f"{read['float']}({pointer})"
        case PerColumn(name) if in_pages:
            between = group_stride(name)
            return f"of_page({local(name)}, {between}, min({at.column}, shape_n - 1))"
        case PerColumn(name):
            return f"{read['float']}({local(name)} + min({at.column}, shape_n - 1))"
        case PerRow(name):
            return f"{read['float']}({local(name)} + {at.row if at.inside else f'min({at.row}, shape_m - 1)'})"
        case RowBound(name):
            return f"{read['int']}({local(name)} + {at.row})"
        case InWindow(value, first, end):
            begun = f"{at.column} >= {c(first)} && " if first else ""
            inside = f"{begun}{at.column} < {c(end)}"
            return f"({inside} ? {c(value)} : {MINUS_INFINITY})"
        case PerElement(name, dtype):
            row = f"{local(name)} + (long long)min({at.row}, shape_m - 1) * {row_stride(name)}"
            return f"{LOADS[dtype]}({row} + min({at.pair}, (shape_n - 1) / 2 * 2), {at.which})"
        case BinOp(op, lhs, rhs):
            return f"({c(lhs)} {op} {c(rhs)})"
        case InGroup(value, groups):
            of_row = f"{table(groups, pdl)} + min({at.row}, shape_m - 1)"
            return f"({read['int']}({of_row}) < 0 ? 0 : {c(value)})"
        case Call(function, args):
            return f"{C_FUNCTIONS[function]}({', '.join(map(c, args))})"
    raise IRError(f"no C spelling for {e!r}")
