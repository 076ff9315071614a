"""Dtypes and sizes that must agree; sizes may be symbolic."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import DType
from ..runtime.torch_tensors import dtype_of, torch
from .made import Sides


def check(name: str, x: Any, dtype: DType, shape: Sides) -> None:
    """Raise ArgumentError unless `x` is of `dtype` and has these sides."""
    dtype_of(name, x, (dtype,))
    check_dims(name, x, len(shape))
    for i, (got, want) in enumerate(zip(x.shape, shape, strict=True)):
        equal(f"{name} side {i}", got, want)


def check_dims(name: str, x: Any, dims: int) -> None:
    if x.dim() != dims:
        raise ArgumentError(f"{name} shape", tuple(x.shape), f"must have {dims} dimensions")


def equal(what: str, got: Any, want: Any) -> None:
    require(got == want, what, got, f"must be {want}")


def require(holds: Any, what: str, got: Any, allowed: str) -> None:
    """Raise ArgumentError unless `holds`; of symbolic numbers, have the tracer see to it."""
    if not isinstance(holds, bool):
        torch()._check(holds, lambda: f"{what}={got}: {allowed}")
    elif not holds:
        raise ArgumentError(what, got, allowed)
