"""What an epilogue reads, checked: vectors, matrices and numbers become kernel parameters."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ArgumentError
from ..ir.argument_names import group_stride, parameter, row_stride
from ..ir.dtypes import F32, S32, DType
from ..ir.expr import PerColumn, PerElement, PerRow, RowBound, Scalar, arguments
from ..ir.groupings import GROUPINGS
from ..ir.row_sums import fold_rows
from ..problem import Problem
from ..runtime.torch_tensors import check_tensor, dtype_of

Shape = tuple[int, int, int]
Values = dict[str, int | float]


def numbers_given(p: Problem, given: dict[str, Any]) -> bool:
    """Whether every Scalar is a number, and no tensor that the host had to read."""
    scalars = (x.name for x in arguments(p.epilogue) if isinstance(x, Scalar))
    return not any(hasattr(given[name], "data_ptr") for name in scalars)


def epilogue_values(
    p: Problem, shape: Shape, groups: int, given: dict[str, Any], device: Any
) -> Values:
    g = GROUPINGS[p.grouping]
    sides = {
        PerColumn: ((groups,) * g.vectors, shape[1]),
        PerRow: ((groups,) * g.outputs, shape[0]),
    }
    values: Values = {}
    wanted = {x.name: x for x in arguments(p.epilogue)}
    for name in given.keys() - wanted.keys():
        raise ArgumentError(name, given[name], f"the epilogue reads only {sorted(wanted)}")
    for name, x in wanted.items():
        if name not in given:
            raise ArgumentError(name, None, "is read by the epilogue and must be given")
        match x:
            case Scalar():
                values[parameter(name)] = _number(name, given[name])
            case PerElement(_, dtype):
                lead, side = sides[PerRow]
                values |= _per_element(name, given[name], dtype, (*lead, side, shape[1]), device)
            case RowBound():
                lead, rows = sides[PerRow][0], shape[0] // fold_rows(p.epilogue)
                values[parameter(name)] = _vector(name, given[name], (*lead, rows), device, S32)
            case PerColumn() if p.paged:
                values |= _in_pages(name, given[name], p.paged, device)
            case _:
                lead, side = sides.get(type(x), ((), 1))
                values[parameter(name)] = _vector(name, given[name], (*lead, side), device)
    return values


def _number(name: str, value: Any) -> float:
    """A number, or what holds one: a tensor of one element, which the host waits for."""
    try:
        if not isinstance(value, str | bytes | bytearray):
            return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise ArgumentError(name, value, "must be a number")


def _vector(name: str, t: Any, shape: tuple[int, ...], device: Any, dtype: DType = F32) -> int:
    """The address of `shape` of `dtype`, dense. One element may have no dimension, and one row two."""
    dtype_of(name, t, (dtype,))
    if t.numel() == math.prod(shape):
        if not t.is_contiguous():
            raise ArgumentError(f"{name} strides", tuple(t.stride()), "must be contiguous")
        t = t.reshape(shape)
    check_tensor(name, t, dtype, shape, device)
    return int(t.data_ptr())


def _in_pages(name: str, t: Any, rows: int, device: Any) -> Values:
    check_tensor(name, t, F32, (None, rows), device, contiguous=True)
    return {parameter(name): t.data_ptr(), group_stride(name): t.stride(0)}


def _per_element(name: str, t: Any, dtype: DType, shape: tuple[int, ...], device: Any) -> Values:
    check_tensor(name, t, dtype, shape, device, contiguous=True)
    stride = t.stride(-2) if shape[-2] > 1 else 0
    group = t.stride(0) if len(shape) > 2 and shape[0] > 1 else 0
    for what, step in (("row", stride), ("group", group)):
        if step % 2:
            raise ArgumentError(f"{name} {what} stride", step, "must be a multiple of 2 elements")
    if t.data_ptr() % (2 * dtype.bytes):
        allowed = f"address must be a multiple of {2 * dtype.bytes} bytes"
        raise ArgumentError(name, t.data_ptr(), allowed)
    return {
        parameter(name): t.data_ptr(),
        row_stride(name): stride,
        group_stride(name): group,
    }
