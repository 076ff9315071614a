"""Grouped launches, and one GEMM of torch's over as many rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..config import Config
from ..errors import UnsupportedProblem
from ..ir.dtypes import FP8
from ..ir.groupings import GROUPINGS, OF_SIZES
from ..problem import Problem
from ..runtime.torch_tensors import torch, torch_dtype
from .providers import Call, row_scales
from .shapes import sizes

ROW_MULTIPLE = 256  # rows of A, or of each group: room for the largest group


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """What one launch reads and writes. tables: the device tables, by the name ops gives them."""

    a: Any
    b: Any
    out: Any
    tables: dict[str, Any]
    rows: tuple[int, ...]  # of each group


def rows_of(p: Problem, groups: int, mean: int) -> tuple[int, ...]:
    """The rows of each group: `mean` in a batch, else about it."""
    return (mean,) * groups if p.grouping == "batched" else tuple(sizes(groups, mean))


def calls(p: Problem, shape: tuple[int, ...], config: Config) -> dict[str, Call]:
    """gemmgen, and torch's GEMM of one group's B with the rows of all groups (a batch: `torch.bmm` where it
    takes the dtype): the same products, without the groups. Raises UnsupportedProblem for a family without
    a grouped function."""
    if (p.family, p.a in FP8) not in (("dense", False), ("fp8_block", True)) or p.a.integer:
        raise UnsupportedProblem(f"no grouped benchmark of {p.family} with {p.a.name}")
    if p.layout != "nt" or GROUPINGS[p.grouping].depths:
        raise UnsupportedProblem(f"no benchmark of layout {p.layout}, grouping {p.grouping}")
    t = _tensors(p, shape)
    return {"gemmgen": _ours(p, t, config), reference(p): _theirs(p, t)}


def reference(p: Problem) -> str:
    """The provider that ratios are taken to."""
    if p.a in FP8:
        return "torch._scaled_mm, one"
    return "torch.bmm" if p.grouping == "batched" else "torch.mm, one"


def _tensors(p: Problem, shape: tuple[int, ...]) -> Tensors:
    groups, mean, n, k = shape
    rows, g = rows_of(p, groups, mean), GROUPINGS[p.grouping]
    step = 1 if p.grouping == "batched" else ROW_MULTIPLE
    high = -(-max(rows) // step) * step
    m = high if g.rows else sum(-(-r // ROW_MULTIPLE) * ROW_MULTIPLE for r in rows)
    layout = OF_SIZES[p.grouping](m, list(rows), p.alignment * g.aligned)
    name = {"masked": "group_rows", "ends": "group_ends", "rows": "row_groups"}.get(p.grouping)
    table = torch().tensor(layout.table, dtype=torch().int32, device="cuda")
    lead = (groups,) * g.rows
    dtype = torch_dtype(p.a)
    return Tensors(
        a=torch().randn(*lead, m, k, device="cuda", dtype=torch().bfloat16).to(dtype),
        b=torch().randn(groups, n, k, device="cuda", dtype=torch().bfloat16).to(dtype),
        out=torch().empty(*lead, m, n, device="cuda", dtype=torch_dtype(p.d)),
        tables={name: table} if name else {},
        rows=rows,
    )


def _ours(p: Problem, t: Tensors, config: Config) -> Call:
    name = {"batched": "batched_gemm", "masked": "masked_gemm"}.get(p.grouping, "grouped_gemm")
    given = {**t.tables, "config": config, "out_dtype": p.d.name}
    if p.grouping in ("rows", "ends"):
        given["alignment"] = p.alignment
    if p.family == "dense":
        function = getattr(ops, name)
        return lambda: function(t.a, t.b, out=t.out, **given)
    function = getattr(ops, f"fp8_block_{name}")
    blocks = -(-t.a.shape[-1] // ops.SCALE_BLOCK)
    scale_a = row_scales(*t.a.shape[:-1], blocks)
    columns = -(-t.b.shape[1] // ops.SCALE_BLOCK)
    scale_b = torch().rand(t.b.shape[0], columns, blocks, device="cuda") + 0.5
    return lambda: function(t.a, scale_a, t.b, scale_b, out=t.out, scale_a_layout="mn", **given)


def _theirs(p: Problem, t: Tensors) -> Call:
    if reference(p) == "torch.bmm":
        batch = torch().empty_like(t.out)
        return lambda: torch().bmm(t.a, t.b.mT, out=batch)
    m = math.ceil(sum(t.rows) / 16) * 16  # a multiple that _scaled_mm takes
    k, n = t.a.shape[-1], t.b.shape[1]
    a = torch().randn(m, k, device="cuda", dtype=torch().bfloat16).to(t.a.dtype)
    one, out = (
        torch().ones((), device="cuda"),
        torch().empty(m, n, device="cuda", dtype=t.out.dtype),
    )
    b = t.b[0].T
    if p.a in FP8:
        return lambda: torch()._scaled_mm(
            a, b, one, one, out_dtype=t.out.dtype, use_fast_accum=True, out=out
        )
    return lambda: torch().mm(a, b, out=out)
