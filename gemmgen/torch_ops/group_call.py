"""One call of an operator of a process group, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..ir.collectives import ALL_GATHER, ALL_REDUCE
from ..ir.expr import arguments
from ..ops import all_reduced, ranked
from ..ops.collective import capturing
from ..problem import Problem, Shape
from .collectives import GROUP, Collective, group_of
from .fakes import checked


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call, checked. given: its arguments by name; shape: (M, N, K), M of D."""

    op: Collective
    given: Mapping[str, Any]
    problem: Problem
    shape: Shape

    @cached_property
    def group(self) -> Any:
        return group_of(self.given[GROUP])

    @property
    def device(self) -> Any:
        return self.given["a"].device

    @property
    def gathers(self) -> bool:
        return self.op.collective == ALL_GATHER

    @property
    def reduces(self) -> bool:
        return self.op.collective == ALL_REDUCE

    @cached_property
    def ranks(self) -> int:
        return int(self.group.size())

    @cached_property
    def captured(self) -> bool:
        """Whether it becomes part of a CUDA graph."""
        return self.device.type == "cuda" and capturing()

    @property
    def mailbox_bytes(self) -> int:
        """What its sums take in the memory of each rank."""
        m, n, _ = self.shape
        of = all_reduced.all_reduce_bytes if self.reduces else ranked.mailbox_bytes
        return of(m, n, self.ranks, self.problem.wire)

    @property
    def own_rows(self) -> int:
        """Of A or of D, those that are this rank's, which of an all-reduce are all."""
        return self.shape[0] // self.ranks if self.gathers else self.shape[0]

    @property
    def read(self) -> dict[str, Any]:
        """What the epilogue reads, by name."""
        return {x.name: self.given[x.name] for x in arguments(self.problem.epilogue)}

    @property
    def operands(self) -> dict[str, Any]:
        return {x: self.given[x] for x in self.op.tensors}

    @property
    def said(self) -> dict[str, Any]:
        """How they are stored."""
        return {x: self.given[x] for x in ("layout", "scale_a_layout") if x in self.given}


def called(op: Collective, given: Mapping[str, Any], overload: Any = "") -> Call:
    """Raises ArgumentError."""
    p, (_, *shape) = checked(op, overload, {**given})
    m, n, k = shape
    return Call(op=op, given=given, problem=p, shape=(m, n, k))
