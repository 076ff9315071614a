"""Packed weights of several tensors as those of one: rows below rows, experts beside experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import ArgumentError
from ..ir.packed import ROWS
from ..runtime.torch_tensors import torch
from .packing import Packed


def joined(parts: Sequence[Packed]) -> Packed:
    """Packed weights [..., N, K] whose rows are those of `parts` in order, as of gate and up: factors are of rows, so tensors may have scales of their own.

    Rows of all but the last must be whole blocks, a multiple of 64. Copied, once. Raises ArgumentError for parts that are none, or of other formats, dtypes or sides but N.
    """
    first = _checked(parts)
    for i, x in enumerate(parts[:-1]):
        if x.shape[-2] % ROWS:
            allowed = f"must have rows in multiples of {ROWS}: blocks have so many"
            raise ArgumentError(f"parts[{i}] shape", x.shape, allowed)
    for i, x in enumerate(parts):
        _alike(f"parts[{i}] shape", x.shape, (*first.shape[:-2], x.shape[-2], first.shape[-1]))
    rows = sum(x.shape[-2] for x in parts)
    shape = (*first.shape[:-2], rows, first.shape[-1])
    blocks = torch().cat([x.blocks for x in parts], dim=-3)
    return replace(first, blocks=blocks, shape=shape, factors=_factors(parts, torch().cat, -1))


def stacked(parts: Sequence[Packed]) -> Packed:
    """Packed weights [len(parts), ..., N, K], as of experts that a checkpoint has one by one. Copied, once. Raises ArgumentError for parts that are none, or of other
    formats, dtypes or sides."""
    first = _checked(parts)
    for i, x in enumerate(parts):
        _alike(f"parts[{i}] shape", x.shape, first.shape)
    blocks = torch().stack([x.blocks for x in parts])
    shape = (len(parts), *first.shape)
    return replace(first, blocks=blocks, shape=shape, factors=_factors(parts, torch().stack, 0))


def _checked(parts: Any) -> Packed:
    if not isinstance(parts, Sequence) or not parts:
        raise ArgumentError("parts", type(parts).__name__, "must be a list of gemmgen.quant.Packed")
    for i, x in enumerate(parts):
        if not isinstance(x, Packed):
            allowed = "must be a gemmgen.quant.Packed"
            raise ArgumentError(f"parts[{i}]", type(x).__name__, allowed)
        _alike(f"parts[{i}] format", x.format.name, parts[0].format.name)
        _alike(f"parts[{i}] dtype", str(x.dtype), str(parts[0].dtype))
        _alike(f"parts[{i}] device", str(x.blocks.device), str(parts[0].blocks.device))
    first: Packed = parts[0]
    return first


def _alike(argument: str, value: Any, wanted: Any) -> None:
    if value != wanted:
        raise ArgumentError(argument, value, f"must be {wanted}, as of the first")


def _factors(parts: Sequence[Packed], together: Any, dim: int) -> Any:
    """None if no part has any."""
    if all(x.factors is None for x in parts):
        return None
    found = (torch().ones(x.shape[:-1]) if x.factors is None else x.factors for x in parts)
    device = parts[0].blocks.device
    return together([x.to(device) for x in found], dim=dim)
