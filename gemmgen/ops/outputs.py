"""What a launch writes: D, and beside it its scales, or sums of squares. As it was given and checked, or made anew."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import F32
from ..ir.squares import SQUARES
from ..problem import Problem
from ..recipes import SCALE_BLOCK
from ..runtime.torch_tensors import check_apart, check_tensor, maker
from .front import fresh, tensor_of


def outputs_of(
    p: Problem,
    d_shape: tuple[int, ...],
    a: Any,
    b: Any,
    out: Any,
    scale_out: Any,
    squares: Any = None,
) -> dict[str, Any]:
    """`out`, and `scale_out` if D is FP8, `squares` if they are summed: as given and checked, or Fresh. Raises ArgumentError."""
    made = {"out": output_of(p, d_shape, out, a, b)}
    others = {"a": a, "b": b, "out": tensor_of(made["out"])}
    if p.squares or squares is not None:
        made[SQUARES] = _squares(p, d_shape[:-1], squares, others)
    if p.quantised or scale_out is not None:
        made["scale_out"] = _scale_out(p, d_shape, scale_out, others)
    return made


def stores(result: dict[str, Any]) -> dict[str, int]:
    """Where a kernel stores these outputs, by its parameters; of one group."""
    out, scales = result["out"], result.get("scale_out")
    found = {"d": out.data_ptr(), "d_stride": out.stride(-2)}
    if scales is not None:
        found |= {"scale_d": scales.data_ptr(), "scale_d_stride": scales.stride(-1)}
    if SQUARES in result:
        squares = result[SQUARES]
        found |= {SQUARES: squares.data_ptr(), f"{SQUARES}_stride": squares.stride(-1)}
    return found


def output_of(p: Problem, d_shape: tuple[int, ...], given: Any, a: Any, b: Any) -> Any:
    """`given`, once it can be D; Fresh if None. Raises ArgumentError."""
    if given is None and p.accumulate:
        raise ArgumentError("out", None, "must be given, to be added to")
    if given is None:
        return fresh("out", maker(d_shape, p.d, a.device))
    check_tensor("out", given, p.d, d_shape, a.device, contiguous=True)
    check_apart("out", given, {"a": a, "b": b})
    return _writable("out", given)


def _scale_out(p: Problem, d_shape: tuple[int, ...], given: Any, others: dict[str, Any]) -> Any:
    """float32 [..., M, ceil(N/128)] of an FP8 D, contiguous along M: `given`, or a Fresh one whose columns
    begin at multiples of 16 bytes. Raises ArgumentError."""
    if not p.quantised:
        raise ArgumentError("scale_out", type(given).__name__, "is for out_dtype 'e4m3' only")
    *lead, m, n = d_shape
    blocks, device = -(-n // SCALE_BLOCK), others["out"].device
    if given is None:
        columns = maker((*lead, blocks, m), F32, device, "scale_out")
        return fresh("scale_out", lambda: columns().mT)
    check_tensor("scale_out", given, F32, (*lead, m, blocks), device)
    if m > 1 and given.stride(-2) != 1:
        raise ArgumentError("scale_out stride along M", given.stride(-2), "must be 1")
    if blocks > 1 and given.stride(-1) < m:
        allowed = f"must be at least the column's {m} elements"
        raise ArgumentError("scale_out column stride", given.stride(-1), allowed)
    check_apart("scale_out", given.mT, others)
    return _writable("scale_out", given)


def _squares(p: Problem, rows: tuple[int, ...], given: Any, others: dict[str, Any]) -> Any:
    """float32 [..., M]: `given`, or a Fresh one. Raises ArgumentError."""
    if not p.squares:
        raise ArgumentError(SQUARES, type(given).__name__, "is of problems with squares=true only")
    if given is None:
        return fresh(SQUARES, maker(rows, F32, others["out"].device, SQUARES))
    check_tensor(SQUARES, given, F32, rows, others["out"].device)
    if any(side > 1 and step < 1 for side, step in zip(rows, given.stride(), strict=True)):
        raise ArgumentError(f"{SQUARES} strides", given.stride(), "must be above 0")
    column = given.reshape(*given.shape, 1)  # maybe of a wider tensor
    check_apart(SQUARES, column, others)
    return _writable(SQUARES, given)


def _writable(name: str, given: Any) -> Any:
    if getattr(given, "readonly", False):
        raise ArgumentError(name, "an array that is read-only", "must be writable")
    return given
