"""Tensors of a checkpoint by name: there, of a dtype, of a shape; the error names the tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentError
from ..formats import GROUPS, Format, int4
from ..formats.format import INT4_SCALES
from ..ir.dtypes import DTYPES
from ..ir.packed import COLUMN
from ..runtime.torch_tensors import dtype_of, torch, torch_dtype

Tensors = Mapping[str, Any]
FLOATS = tuple(DTYPES[x] for x in INT4_SCALES)


def tensor(
    tensors: Tensors, name: str, dtypes: tuple[Any, ...], dims: int, *, more: bool = False
) -> Any:
    """The one called `name`, of so many dimensions, or of `more`, of one of torch's `dtypes`. Raises ArgumentError."""
    if name not in tensors:
        raise ArgumentError(name, None, "must be among the tensors")
    found = tensors[name]
    if not isinstance(found, torch().Tensor):
        raise ArgumentError(name, type(found).__name__, "must be a torch tensor")
    if found.dtype not in dtypes:
        allowed = f"must be {' or '.join(map(str, dtypes))}"
        raise ArgumentError(f"{name} dtype", found.dtype, allowed)
    if found.dim() < dims or (found.dim() > dims and not more) or 0 in found.shape:
        allowed = f"must be {dims} sides{' or more' * more}, none of them 0"
        raise ArgumentError(f"{name} shape", tuple(found.shape), allowed)
    return found


def shaped(name: str, x: Any, shape: tuple[int, ...], because: str) -> None:
    """Raise ArgumentError if `x` has another shape."""
    if tuple(x.shape) != shape:
        raise ArgumentError(f"{name} shape", tuple(x.shape), f"must be {list(shape)}: {because}")


def int4_of(name: str, k: int, scales: Any, *, zeros: bool, along: int = 0) -> Format:
    """The INT4 format of `k` columns whose scales are [groups, N], or [N, groups] with `along` 1. Raises ArgumentError naming the scales `name` if
    the groups are none that are taken."""
    groups = scales.shape[along]
    size = k // groups
    group = COLUMN if groups == 1 and size not in GROUPS else size
    if k % 2 or k % groups or group not in GROUPS:
        allowed = ", ".join(map(str, GROUPS[:-1]))
        raise ArgumentError(
            f"{name} shape",
            tuple(scales.shape),
            f"{k} columns must be groups of {allowed}, or one of an even number",
        )
    return int4(group, dtype_of(name, scales, FLOATS).name, zeros=zeros)


def floats() -> tuple[Any, ...]:
    """torch's dtypes of INT4's scales."""
    return tuple(map(torch_dtype, FLOATS))


def finite(name: str, scales: Any) -> None:
    """Raise ArgumentError if one of them is not."""
    if not bool(scales.isfinite().all()):
        raise ArgumentError(name, "NaN or infinity", "must be finite")
