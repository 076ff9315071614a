"""What a C caller passes for a problem, what is checked of it, and which kernel parameter carries it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import UnsupportedProblem
from ..ir.dtypes import F32, DType
from ..ir.expr import (
    Argument,
    PerColumn,
    PerElement,
    PerRow,
    Scalar,
    arguments,
    fold,
    parameter,
    row_stride,
)
from ..ir.nodes import Kernel
from ..problem import INT8_K, Problem

BLOCKS_N, BLOCKS_K = "(n + 127) / 128", "(k + 127) / 128"
C_TYPES = {"int": "int32_t", "float": "float"}  # of parameters; the others are addresses
ADDRESS = "CUdeviceptr"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member of the C arguments. ctype: `CUdeviceptr`, `int64_t` or `float`. says: the comment beside it.
    checks: C calls that return a status. example: in C, over m, n and k, what the example program sets it to,
    or of an address the bytes behind it."""

    name: str
    ctype: str
    says: str
    example: str
    checks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """What a tensor map is over: `outer` rows of `inner` contiguous elements, in C over m, n and k."""

    name: str
    dtype: DType
    outer: str
    inner: str

    @property
    def stride(self) -> str:
        return f"{self.name}_stride"

    @property
    def members(self) -> tuple[Member, Member]:
        step = 16 // self.dtype.bytes
        shape = f"{self.dtype.name} [{self.outer}, {self.inner}], 16-byte aligned"
        return (
            Member(
                name=self.name,
                ctype=ADDRESS,
                says=shape,
                example=f"{self.outer} * args.{self.stride} * {self.dtype.bytes}",
            ),
            Member(
                name=self.stride,
                ctype="int64_t",
                says=f"elements from row to row, a multiple of {step}",
                example=f"({self.inner} + {step - 1}) / {step} * {step}",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A kernel parameter after the tensor maps: its name, its C type and the C expression of its value."""

    name: str
    ctype: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Interface:
    """All kernels of a problem take the same: tensor maps over `tensors` in this order, then `parameters`."""

    members: tuple[Member, ...]  # after m, n and k
    tensors: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: tuple[Parameter, ...]
    checks: tuple[str, ...]  # C calls that return a status, in order


def interface(p: Problem, kernel: Kernel) -> Interface:
    """What a launch of `kernel`, lowered from `p`, is given. Raises UnsupportedProblem for what a C caller
    could not give: groups, a watchdog's report."""
    if p.grouping != "none":
        raise UnsupportedProblem(
            f"a pack holds single GEMMs: grouping={p.grouping} must be none; use gemmgen.ops for groups"
        )
    tensors = tuple(
        Tensor(name=m.tensor, dtype=kernel.buffer(m.smem).dtype, outer=outer, inner=inner)
        for m in kernel.maps
        for outer, inner in (_sides(p)[m.tensor],)
    )
    mapped = [x for t in tensors for x in t.members]
    outputs = (*(t for t in tensors if t.name == "d"), *(_output_scales(p),) * p.quantised)
    further, known = _further(p), {x.name for x in mapped}
    parameters = [_parameter(x.name, x.ctype) for x in kernel.params]
    own = [x for x in parameters if x.name not in known and not x.name.startswith("shape_")]
    for x in own:
        if x.name not in further:
            raise UnsupportedProblem(f"a pack cannot give {kernel.name} its parameter {x.name}")
    members = (*mapped, *(further[x.name] for x in own))
    return Interface(
        members=members,
        tensors=tensors,
        outputs=outputs,
        parameters=tuple(parameters),
        checks=(
            *(f"check_matrix(&tensors[{i}])" for i in range(len(tensors))),
            *(_range(x.name, 0) for x in parameters if _is_size(x)),
            *(check for x in members for check in x.checks),
            *_apart(tensors, outputs),
        ),
    )


def shape_checks(p: Problem) -> tuple[str, ...]:
    """C calls that return a status, of what a shape must be before anything is computed from it."""
    most = str(INT8_K) if p.a.integer and p.family == "dense" else "INT32_MAX"
    pairs = f'check_multiple("n", args->n, {fold(p.epilogue)})'
    return (_range("m", 0), _range("n", 1), _range("k", 1, most), pairs)


def _apart(tensors: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Iterator[str]:
    """That no output overlaps an operand, or an output before it."""
    for i in range(len(outputs)):
        for j, t in enumerate(tensors):
            if t.name in ("a", "b"):
                yield f"check_apart(&outputs[{i}], &tensors[{j}])"
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
    return Parameter(name=name, ctype=C_TYPES.get(ctype, ADDRESS), value=value)


def _is_size(x: Parameter) -> bool:
    return x.ctype == "int32_t" and not x.name.startswith("shape_")


def _range(name: str, least: int, most: str = "INT32_MAX") -> str:
    return f'check_range("{name}", args->{name}, {least}, {most})'


def _further(p: Problem) -> dict[str, Member]:
    """What kernels read or write through plain pointers, by parameter."""
    found = [*_block_scales(), *_scale_members(_output_scales(p))]
    found += [x for argument in arguments(p.epilogue) for x in _argument(argument)]
    return {x.name: x for x in found}


def _block_scales() -> Iterator[Member]:
    says = f"f32 [{BLOCKS_N}, {BLOCKS_K}], any strides"
    yield _pointer("scale_b", says, f"{BLOCKS_N} * ({BLOCKS_K}) * 4")
    yield _stride("scale_b_stride_n", "elements from 128 columns to the next", BLOCKS_K)
    yield _stride("scale_b_stride_k", "elements from 128 of k to the next", "1")


def _output_scales(p: Problem) -> Tensor:
    blocks = f"({_d_columns(p)} + 127) / 128"
    return Tensor(name="scale_d", dtype=F32, outer=blocks, inner="m")


def _scale_members(t: Tensor) -> Iterator[Member]:
    yield _pointer(t.name, f"f32 [{t.outer}, m], written", f"{t.outer} * m * 4")
    least = f"{t.outer} > 1 ? m : 0"
    check = f'check_range("{t.stride}", args->{t.stride}, {least}, INT32_MAX)'
    yield _stride(t.stride, "elements from row to row, at least m", "m", check)


def _argument(x: Argument) -> Iterator[Member]:
    name = parameter(x.name)
    match x:
        case Scalar():
            yield Member(name=name, ctype="float", says="a number", example="1.0f")
        case PerElement(_, dtype):
            stride = row_stride(x.name)
            size = f"m * args.{stride} * {dtype.bytes}"
            yield _pointer(name, f"{dtype.name} [m, n]", size, 2 * dtype.bytes)
            # A single row is never stepped from.
            check = f'check_multiple("{stride}", m > 1 ? args->{stride} : 0, 2)'
            yield _stride(stride, "elements from row to row, even", "(n + 1) / 2 * 2", check)
        case PerRow():
            yield _pointer(name, "f32 [m]", "m * 4")
        case PerColumn():
            yield _pointer(name, "f32 [n]", "n * 4")
        case _:
            yield _pointer(name, "f32, one element", "4")


def _pointer(name: str, says: str, size: str, alignment: int = 4) -> Member:
    check = f'check_address("{name}", args->{name}, {alignment})'
    return Member(name=name, ctype=ADDRESS, says=says, example=size, checks=(check,))


def _stride(name: str, says: str, example: str, *checks: str) -> Member:
    return Member(name=name, ctype="int64_t", says=says, example=example, checks=checks)
