"""What functions for tensors on any device ask of them, and of numbers. Raise ArgumentError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentError
from ..runtime.torch_tensors import torch


def check_number(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ArgumentError(name, value, f"must be a whole number from {least} to {most}")


def check_matrix(name: str, x: Any, sides: str) -> None:
    """That x has two sides, which `sides` calls by name."""
    if x.dim() != 2:
        raise ArgumentError(f"{name} shape", tuple(x.shape), f"must be [{sides}]")


def check_shape(name: str, x: Any, shape: tuple[Any, ...]) -> None:
    if tuple(x.shape) != shape:
        must = f"must be [{', '.join(map(str, shape))}]"
        raise ArgumentError(f"{name} shape", tuple(x.shape), must)


def check_together(tensors: Mapping[str, Any]) -> None:
    """That all are torch's tensors, on the device of the first."""
    for name, x in tensors.items():
        if not isinstance(x, torch().Tensor):
            raise ArgumentError(name, type(x).__name__, "must be a torch tensor")
    first, one = next(iter(tensors.items()))
    for name, x in tensors.items():
        if x.device != one.device:
            must = f"must be on {one.device}, as {first} is"
            raise ArgumentError(f"{name} device", str(x.device), must)


def check_no_gradient(tensors: Mapping[str, Any], must: str) -> None:
    """That none, of those that are not None, asks for a gradient."""
    for name, x in tensors.items():
        if getattr(x, "requires_grad", False) and torch().is_grad_enabled():
            raise ArgumentError(name, "requires a gradient", must)
