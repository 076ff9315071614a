"""`deep_gemm.testing.numeric`: how far two tensors are apart, and what they weigh."""

from __future__ import annotations

from typing import Any

from gemmgen.runtime.torch_tensors import torch

__all__ = ["assert_bitwise_equal", "calc_diff", "count_bytes"]


def calc_diff(x: Any, y: Any) -> Any:
    """The sum of squared differences over that of x^2 + y^2, in float64: 0 for equal tensors, also for two of
    zeros; 1 for two that have nothing in common."""
    one, other = x.double(), y.double()
    both = one.square().sum() + other.square().sum()
    return 0.0 if both == 0 else (one - other).square().sum() / both


def count_bytes(*tensors: Any) -> int:
    """Bytes of all elements of the tensors in tuples and lists of any depth; None has none."""
    total = 0
    for t in tensors:
        if isinstance(t, tuple | list):
            total += count_bytes(*t)
        elif t is not None:
            total += t.numel() * t.element_size()
    return total


def assert_bitwise_equal(x: Any, y: Any, label: str = "") -> None:
    """Raise AssertionError unless shapes, dtypes and all bits are equal. It says where they first differ."""
    named = f"{label}: " if label else ""
    for what in ("shape", "dtype"):
        if getattr(x, what) != getattr(y, what):
            raise AssertionError(f"{named}{what} {getattr(x, what)} is not {getattr(y, what)}")
    bits = [t.contiguous().view(-1).view(torch().uint8).view(-1, t.element_size()) for t in (x, y)]
    wrong = (bits[0] != bits[1]).any(1).nonzero().flatten()
    if wrong.numel():
        i = int(wrong[0])
        one, other = (t.flatten()[i].item() for t in (x, y))
        raise AssertionError(
            f"{named}{wrong.numel()} of {x.numel()} elements differ, first the {i}th of {[*x.shape]}: "
            f"{one!r} is not {other!r}"
        )
