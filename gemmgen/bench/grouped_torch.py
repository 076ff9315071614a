"""torch's own grouped GEMM, beside gemmgen's grouped launches."""

from __future__ import annotations

from typing import Any

from ..errors import RuntimeUnavailable
from ..ir.dtypes import BF16
from ..ir.groupings import OF_SIZES, segments
from ..problem import Problem
from ..runtime.torch_tensors import torch

NAME = "torch._grouped_mm"


def takes(p: Problem) -> bool:
    """BF16 groups of rows that follow each other."""
    return p.a == p.d == BF16 and p.grouping in ("rows", "ends") and p.layout == "nt"


def available() -> bool:
    """Whether torch is installed, and has it."""
    try:
        return hasattr(torch(), "_grouped_mm")
    except RuntimeUnavailable:
        return False


def offsets(p: Problem, m: int, rows: tuple[int, ...]) -> list[int]:
    """The row after each group's last, for groups that begin where the one before ends: where gemmgen's next
    group begins. What lies between is multiplied too. `rows`: of each group, of `m` in all."""
    layout = OF_SIZES[p.grouping](m, list(rows), p.alignment)
    ends = [0] * len(rows)
    for s in segments(p.grouping, m, layout, p.alignment):
        ends[s.group] = min(m, -(-s.end // p.alignment) * p.alignment)
    return ends


def calls(p: Problem, t: Any, fresh: bool) -> dict[str, Any]:
    """Of the tensors of one launch (`grouped.Tensors`), if torch has it; D is always a new one."""
    if not takes(p) or not available():
        return {}
    ends = torch().tensor(offsets(p, t.a.shape[0], t.sizes), dtype=torch().int32, device=t.a.device)
    return {NAME: lambda: torch()._grouped_mm(t.a, t.wide.mT, offs=ends)}
