"""What a C caller passes for a problem, what is checked of it, and which kernel parameter carries it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import UnsupportedProblem
from ..ir import argument_names, packed
from ..ir.argument_names import parameter, row_stride
from ..ir.counts import MOST_SIDE
from ..ir.dtypes import F32, S8
from ..ir.exchange import PARTIALS
from ..ir.expr import Argument, PerColumn, PerElement, PerRow, Scalar, arguments, fold
from ..ir.groupings import GROUPINGS
from ..ir.nodes import Kernel, TmaMap
from ..problem import Problem
from . import groups
from .members import (
    ADDRESS,
    Member,
    Parameter,
    Tensor,
    group_stride,
    in_range,
    number,
    pointer,
    workspace_size,
)

BLOCKS_N, BLOCKS_K = "(n + 127) / 128", "(k + 127) / 128"
C_TYPES = {"int": "int32_t", "long long": "int64_t", "float": "float"}  # others are addresses


@dataclass(frozen=True, kw_only=True)
class Interface:
    """All kernels of a problem take the same: tensor maps over `tensors` in this order, then `parameters`, of which some have no use for
    the last, a workspace for sums. operands: A and B, wherever they lie. maps: the member that points to memory in which a launch keeps
    `derived` tensor maps per CTA and group; sums: to memory by which CTAs hand sums over. At most one of both is there."""

    members: tuple[Member, ...]  # after m, n and k
    tensors: tuple[Tensor, ...]
    operands: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: tuple[Parameter, ...]
    maps: tuple[Member, ...]
    sums: tuple[Member, ...]
    derived: int
    checks: tuple[str, ...]  # C calls that return a status, in order

    @property
    def workspaces(self) -> tuple[Member, ...]:
        return (*self.maps, *self.sums)


def interface(p: Problem, kernel: Kernel, summing: bool = False) -> Interface:
    """What a launch of `kernel`, lowered from `p`, is given. summing: also a workspace for sums, which other kernels of the pack
    take. Raises UnsupportedProblem for what a C caller could not give: a watchdog's report."""
    tensors = tuple(_tensor(p, kernel, m) for m in kernel.maps)
    mapped = [x for t in tensors for x in t.members]
    outputs = (*(t for t in tensors if t.name == "d"), *(_output_scales(p),) * p.quantised)
    operands = (*(t for t in tensors if t.name in ("a", "b")), *_blocks(p))
    further, known = _further(p), {"groups", *(x.name for x in mapped)}
    parameters = [_parameter(x.name, x.ctype) for x in kernel.params]
    if summing and parameters[-1].name != PARTIALS:
        parameters.append(_parameter(PARTIALS, ""))
    own = [x for x in parameters if x.name not in known and not x.name.startswith("shape_")]
    for x in own:
        if x.name not in further:
            raise UnsupportedProblem(f"a pack cannot give {kernel.name} its parameter {x.name}")
    given = tuple(further[x.name] for x in own)
    maps, sums = (tuple(x for x in given if x.name == w) for w in (groups.GROUP_MAPS, PARTIALS))
    sizes = tuple(workspace_size(x) for x in (*maps, *sums))
    members = (*groups.count(p), *mapped, *given, *sizes, *groups.expected(p))
    return Interface(
        members=members,
        tensors=tensors,
        operands=operands,
        outputs=outputs,
        parameters=tuple(parameters),
        maps=maps,
        sums=sums,
        derived=sum(m.derived for m in kernel.maps),
        checks=(
            *(f"check_matrix(&tensors[{i}])" for i in range(len(tensors))),
            *(in_range(x.name, 0) for x in parameters if _is_size(x)),
            *(check for x in members for check in x.checks if x.name != "groups"),
            *_apart(operands, outputs),
        ),
    )


def check_mapped(p: Problem) -> None:
    """Raise UnsupportedProblem unless D is [M, N] and all of what is computed, and A's rows are in order."""
    if p.paged:
        said = "a pack's C code knows of no table of pages"
        raise UnsupportedProblem(f"a pack cannot hold kernels of rows by page: {said}")
    if p.squares:
        said = "a pack's C code passes D alone"
        raise UnsupportedProblem(f"a pack cannot hold kernels of squares=true: {said}")
    if p.heads:
        raise UnsupportedProblem(
            f"a pack cannot hold kernels of heads={p.heads}: its D has no gaps"
        )
    if p.compact:
        said = "a pack's C code passes a D of N columns"
        raise UnsupportedProblem(f"a pack cannot hold kernels of compact=true: {said}")


def _tensor(p: Problem, kernel: Kernel, m: TmaMap) -> Tensor:
    outer, inner = _sides(p)[m.tensor]
    return Tensor(
        name=m.tensor,
        dtype=kernel.buffer(m.smem).dtype,
        outer=outer,
        inner=inner,
        grouped=m.grouped,
        packed=kernel.groups.own(m),
    )


def shape_checks(p: Problem) -> tuple[str, ...]:
    """C calls that return a status, of what a shape must be before anything is computed from it."""
    exact = groups.most_k(p, 1)
    divided = exact < MOST_SIDE and GROUPINGS[p.grouping].summed
    most = f"{exact} / (args->groups > 1 ? args->groups : 1)" if divided else exact
    pairs = f'check_multiple("n", args->n, {fold(p.epilogue)})'
    whole = 'check_multiple("k", args->k, {})'
    step = p.form.k_step if p.form else groups.k_step(p)
    return (
        in_range("m", 0, MOST_SIDE),
        in_range("n", 1, MOST_SIDE),
        in_range("k", 1, most),
        pairs,
        *(whole.format(step),) * (step > 1),
        *(check for x in groups.count(p) for check in x.checks),
    )


def _apart(operands: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Iterator[str]:
    """That no output overlaps an operand, or an output before it."""
    for i in range(len(outputs)):
        yield from (f"check_apart(&outputs[{i}], &operands[{j}])" for j in range(len(operands)))
        yield from (f"check_apart(&outputs[{i}], &outputs[{j}])" for j in range(i))


def _sides(p: Problem) -> dict[str, tuple[str, str]]:
    """Rows and columns of what lies in memory, by tensor."""
    a_turned, b_turned = p.mn_major
    return {
        "a": ("k", "m") if a_turned else ("m", "k"),
        "b": ("k", "n") if b_turned else ("n", "k"),
        "scale_a": (BLOCKS_K, "m"),
        "scale_b": (BLOCKS_K, "n"),
        "d": ("m", _d_columns(p)),
    }


def _d_columns(p: Problem) -> str:
    return {1: "n", 2: "n / 2"}[fold(p.epilogue)]


def _parameter(name: str, ctype: str) -> Parameter:
    value = f"args->{name.removeprefix('shape_')}"
    if name == PARTIALS:  # of the kernel's own region
        value += " + 4ull * (CUdeviceptr)kernel->before * (CUdeviceptr)pack->sms"
    return Parameter(name=name, ctype=C_TYPES.get(ctype, ADDRESS), value=value)


def _is_size(x: Parameter) -> bool:
    side = x.name == "groups" or x.name.startswith("shape_")
    return x.ctype == "int32_t" and not side


def _further(p: Problem) -> dict[str, Member]:
    """What kernels read or write through plain pointers, by parameter."""
    found = [*_block_scales(p), *_row_scales(p), *_scale_members(_output_scales(p))]
    found += [x for argument in arguments(p.epilogue) for x in _argument(p, argument)]
    found += [*groups.tables(p), groups.workspace(), _sums(), *_packed(p)]
    return {x.name: x for x in found}


def _sums() -> Member:
    """By which CTAs hand sums over. Its address is checked where a kernel uses it."""
    says = "workspace: zero before its first launch, of one launch at a time, 16-byte aligned"
    return Member(name=PARTIALS, ctype=ADDRESS, says=says, example=f"args.{PARTIALS}_bytes")


def _blocks(p: Problem) -> tuple[Tensor, ...]:
    """B of packed weights: bytes, contiguous."""
    if p.form is None:
        return ()
    outer, inner = f"(n + {packed.ROWS - 1}) / {packed.ROWS}", _block_row(p.form)
    grouped = GROUPINGS[p.grouping].columns
    return (Tensor(name="b", dtype=S8, outer=outer, inner=inner, grouped=grouped, packed=True),)


def _block_row(form: packed.Form) -> str:
    """Bytes of the blocks of 64 rows."""
    return f"((k + {packed.COLUMNS - 1}) / {packed.COLUMNS}) * {form.block_bytes}"


def _packed(p: Problem) -> Iterator[Member]:
    for t in _blocks(p):
        says = f"uint8 [{'groups, ' * t.grouped}{t.outer}, {t.inner}], weights packed from {p.weights} for {p.a.name}, 16-byte aligned"
        size = "groups * args.b_stride_g" if t.grouped else f"({t.outer}) * {t.inner}"
        yield pointer("b", says, size, t.step)
        yield group_stride("b_stride_g", f"({t.outer}) * {t.inner}", t.step)


def _block_scales(p: Problem) -> Iterator[Member]:
    grouped = GROUPINGS[p.grouping].columns
    says = f"f32 [{'groups, ' * grouped}{BLOCKS_N}, {BLOCKS_K}], any strides"
    yield pointer("scale_b", says, f"{'groups * ' * grouped}({BLOCKS_N}) * ({BLOCKS_K}) * 4")
    to_n, to_k = "elements from 128 columns to the next", "elements from 128 of k to the next"
    yield number("scale_b_stride_n", to_n, BLOCKS_K)
    yield number("scale_b_stride_k", to_k, "1")
    yield group_stride("scale_b_stride_g", f"({BLOCKS_N}) * ({BLOCKS_K})")


def _row_scales(p: Problem) -> Iterator[Member]:
    """A's, of a kernel whose lanes read them."""
    grouped = GROUPINGS[p.grouping].rows
    says = f"f32 [{'groups, ' * grouped}m, {BLOCKS_K}], any strides"
    yield pointer("scale_a", says, f"{'groups * ' * grouped}m * ({BLOCKS_K}) * 4")
    yield number("scale_a_stride_m", "elements from row to row", BLOCKS_K)
    yield number("scale_a_stride_k", "elements from 128 of k to the next", "1")
    yield group_stride("scale_a_stride_g", f"m * ({BLOCKS_K})")


def _output_scales(p: Problem) -> Tensor:
    blocks, grouped = f"({_d_columns(p)} + 127) / 128", GROUPINGS[p.grouping].outputs
    return Tensor(name="scale_d", dtype=F32, outer=blocks, inner="m", grouped=grouped)


def _scale_members(t: Tensor) -> Iterator[Member]:
    size = f"{'groups * ' * t.grouped}({t.outer}) * m * 4"
    yield pointer(t.name, f"f32 [{'groups, ' * t.grouped}{t.outer}, m], written", size)
    check = in_range(t.stride, f"{t.outer} > 1 ? m : 0")
    yield number(t.stride, "elements from row to row, at least m", "m", check)
    yield group_stride(f"{t.stride}_g", f"({t.outer}) * m")


def _argument(p: Problem, x: Argument) -> Iterator[Member]:
    name, g = parameter(x.name), GROUPINGS[p.grouping]
    rows, columns = "groups, " * g.outputs, "groups, " * g.vectors
    match x:
        case Scalar():
            yield Member(name=name, ctype="float", says="a number", example="1.0f")
        case PerElement(_, dtype):
            stride = row_stride(x.name)
            size = f"{'groups * ' * g.outputs}m * args.{stride} * {dtype.bytes}"
            yield pointer(name, f"{dtype.name} [{rows}m, n]", size, 2 * dtype.bytes)
            # A single row is never stepped from.
            check = f'check_multiple("{stride}", m > 1 ? args->{stride} : 0, 2)'
            yield number(stride, "elements from row to row, even", "(n + 1) / 2 * 2", check)
            yield group_stride(argument_names.group_stride(x.name), f"m * args.{stride}", 2)
        case PerRow():
            yield pointer(name, f"f32 [{rows}m]", f"{'groups * ' * g.outputs}m * 4")
        case PerColumn():
            yield pointer(name, f"f32 [{columns}n]", f"{'groups * ' * g.vectors}n * 4")
        case _:
            yield pointer(name, "f32, one element", "4")
