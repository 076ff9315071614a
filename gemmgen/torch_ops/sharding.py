"""Which sides of an operator's tensors ranks may divide between them: the rules by which DTensors go through it.

A product has sizes: G groups, M rows, N columns, K. Every tensor of a call says which of its sides are which, so to divide
one size says how each tensor is divided; results without that size are partial sums. The rules of an overload are the
sizes that may be divided, for any layout, epilogue and grouping; there is no rule by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..ir.expr import Argument, Expr, PerColumn, PerElement, PerRow, arguments, fold
from ..ir.groupings import GROUPINGS, Grouping
from ..ir.linearity import homogeneous
from ..ops import SCALE_BLOCK, quantise_rows
from .operators import Operator, Overload

ROW = 16  # bytes: the copy engine asks it of rows, of which a rank's part is then a tensor
PAIR = 2  # elements: an epilogue reads matrices in pairs


class Side(NamedTuple):
    """of: the size that it has an entry of for every `step`."""

    of: str
    step: int = 1


G, M, N, K = map(Side, "GMNK")
BLOCK_M, BLOCK_N, BLOCK_K = (Side(size, SCALE_BLOCK) for size in "MNK")
Sides = tuple[Side, ...]


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """One call. given: its arguments by name; of tensors, `shape` and `dtype` are read."""

    op: Operator
    overload: Overload
    given: dict[str, Any]

    @cached_property
    def tensors(self) -> dict[str, Sides]:
        """The sides of every tensor given."""
        if not self.op.operands:
            return {"x": (*self._lead, M, K)}
        found = self._operands() | self._scales()
        found |= {"group_rows": (G,), "group_ends": (G,), "group_depths": (G,), "row_groups": (M,)}
        found |= {x.name: self._read(x) for x in arguments(self._epilogue)}
        found |= {"c": (*self._outputs, M, N)} if "c" in self.op.parameters else {}
        return {x: sides for x, sides in found.items() if hasattr(self.given.get(x), "shape")}

    @cached_property
    def results(self) -> tuple[Sides, ...]:
        if not self.op.operands:
            return self.tensors["x"], (*self._lead, *self._scales_of_x())
        columns = fold(self._epilogue)
        rows = (*self._outputs, M)
        scales = ((*rows, Side("N", columns * SCALE_BLOCK)),) * (self.overload == "quantised")
        return (*rows, Side("N", columns)), *scales

    @cached_property
    def partial(self) -> frozenset[str] | None:
        """What ranks that sum parts of K must each have a part of, for the sum of their results to be the result. None:
        no such sum is, or its order would not be what `invariant` promises."""
        if not self.op.operands or self.overload == "quantised" or self.given.get("invariant"):
            return None
        added = homogeneous(self._epilogue)
        own = {"c"} & {*self.op.parameters}
        return None if added is None else frozenset({x.name for x in added} | own)

    def divisible(self, ranks: int) -> list[str]:
        """The sizes that so many ranks may divide."""
        return [x for x in dict.fromkeys(self._independent()) if self._fits(x, ranks)]

    def adds_up(self, size: str) -> bool:
        """Whether ranks that divide `size` have parts of sums; "" is divided by none."""
        return bool(size) and not all(
            any(side.of == size for side in sides) for sides in self.results
        )

    def _independent(self) -> Iterator[str]:
        """The sizes whose parts are computed apart, or add up."""
        if not self.op.operands:
            yield from (side.of for side in (*self._lead, M))
            if self.given["block"] is not None:
                yield "K"
            return
        grouping = self._grouping
        if grouping.depths == "flat":
            return
        if grouping.rows and grouping.columns and (not grouping.summed or self.partial is not None):
            yield "G"
        if not grouping.ragged:  # else tables count the rows of all ranks
            yield "M"
        yield "N"
        if not grouping.depths and self.partial is not None:
            yield "K"

    def _fits(self, size: str, ranks: int) -> bool:
        """Whether parts of `size` are the same parts in every tensor, none begins inside a block of scales, and each is
        a tensor that a launch takes."""
        known = self._sizes
        for name, sides in self.tensors.items():
            if any(s.of == size for s in sides):
                stored = tuple(-(-known[s.of] // s.step) for s in sides)
                if tuple(self.given[name].shape) != stored:
                    return False  # a vector may come in another shape
        step = math.lcm(*self._steps(size))
        uneven = step == 1 and size not in (
            "N",
            "K",
        )  # torch cuts all tensors alike; a rank may have no row
        return uneven or known[size] % (step * ranks) == 0

    def _steps(self, size: str) -> Iterator[int]:
        """What a rank's part of `size` must be a multiple of."""
        for sides in (*self.tensors.values(), *self.results):
            yield from (s.step for s in sides if s.of == size)
        for x in self.tensors.keys() & {"a", "b"}:
            if self.tensors[x][-1].of == size:
                yield ROW // self.given[x].dtype.itemsize
        if size == "N" and any(isinstance(x, PerElement) for x in arguments(self._epilogue)):
            yield PAIR
        if size == "M" and self._grouping.aligned:
            yield self.given["alignment"]

    @cached_property
    def _sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name in self.tensors.keys() & {"x", "a", "b"}:
            shape = self.given[name].shape
            found |= {s.of: n for s, n in zip(self.tensors[name], shape, strict=True)}
        if "group_depths" in self.tensors:
            found["G"] = self.given["group_depths"].shape[0]
        return found

    @property
    def _grouping(self) -> Grouping:
        if self.given.get("packing") == "flat":
            return GROUPINGS["k_flat"]
        return GROUPINGS["rows" if self.given.get("row_groups") is not None else self.op.grouping]

    @property
    def _epilogue(self) -> Expr:
        return self.op.epilogue(self.given.get("epilogue", "none"))

    @property
    def _lead(self) -> Sides:
        return tuple(Side(str(i)) for i in range(len(self.given["x"].shape) - 2))

    @property
    def _outputs(self) -> Sides:
        return (G,) * self._grouping.outputs

    def _scales_of_x(self) -> Sides:
        if self.op.function is not quantise_rows:
            return BLOCK_M, BLOCK_K
        return (M,) if self.given["block"] is None else (M, BLOCK_K)

    def _operands(self) -> dict[str, Sides]:
        grouping = self._grouping
        if grouping.depths == "flat":
            return {"a": (Side("flat"),), "b": (Side("flat"),)}
        layout = self.given.get("layout", "nt")
        a = (K, M) if layout[0] == "t" else (M, K)
        b = (K, N) if layout[1] == "n" else (N, K)
        return {"a": (*(G,) * grouping.rows, *a), "b": (*(G,) * grouping.columns, *b)}

    def _scales(self) -> dict[str, Sides]:
        rows, columns = (G,) * self._grouping.rows, (G,) * self._grouping.columns
        match self.op.scaling:
            case "block":
                return {"scale_a": (*rows, M, BLOCK_K), "scale_b": (*columns, BLOCK_N, BLOCK_K)}
            case "vector":
                return {"scale_a": (M, BLOCK_K), "scale_b": (N, BLOCK_K)}
            case "whole":
                sides = {"scale_a": (*rows, M), "scale_b": (*columns, N)}
                return {x: s if self._many(x) else () for x, s in sides.items()}
        return {}

    def _many(self, name: str) -> bool:
        return math.prod(getattr(self.given.get(name), "shape", ())) > 1

    def _read(self, x: Argument) -> Sides:
        match x:
            case PerElement():
                return (*self._outputs, M, N)
            case PerRow():
                return (*self._outputs, M)
            case PerColumn():
                return (*(G,) * self._grouping.vectors, N)
        return ()
