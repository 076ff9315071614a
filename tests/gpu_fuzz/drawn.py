"""Random tensors of a case, inside larger ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from .cases import Case
from .images import embed

# Of K: from there on operands are -1, 0 or 1, so that one lost product stays visible.
SIGNS_FROM = 256


@dataclass(frozen=True, kw_only=True)
class Call:
    """positional, named: what the function gets besides `out`. exact: D in float64. written: the elements of it that a launch writes;
    None: all."""

    positional: tuple[Any, ...]
    named: dict[str, Any]
    exact: Any
    written: Any = None


@dataclass
class Drawn:
    """Random tensors of one case; `held` gathers their parents."""

    case: Case
    device: str
    rng: Random  # of strides and offsets: the same for every turn
    source: Any  # torch.Generator, of values
    normal: bool
    change: Callable[[str, Any], Any]
    held: list[Any] = field(default_factory=list)

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> Any:
        made = torch.randint(low, high + 1, shape, generator=self.source, device=self.device)
        return made.to(torch.float32)

    def operand(self, shape: tuple[int, ...], dtype: str, wide: bool) -> Any:
        if dtype == "int8":
            most = 127 if wide else 8
            return self.integers(shape, -most - 1, most)
        if self.normal:
            return torch.randn(shape, generator=self.source, device=self.device)
        most = 2 if self.case.k < SIGNS_FROM else 1
        return self.integers(shape, -most, most)

    def powers(self, shape: tuple[int, ...]) -> Any:
        return torch.exp2(self.integers(shape, -1, 1))

    def embed(self, values: Any, dtype: Any, turned: bool = False) -> Any:
        """In a parent; `turned`: with the last two sides exchanged there."""
        view, parent = embed(values.mT if turned else values, dtype, self.rng)
        self.held.append(parent)
        return view

    def dense(self, values: Any, dtype: Any) -> Any:
        """Without padding between rows."""
        flat = self.embed(values.reshape(1, -1), dtype)
        return flat.view(values.shape)
