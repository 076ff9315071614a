"""Grouped launches, and one GEMM of torch's over as many rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import ops
from ..config import Config
from ..ir.dtypes import FP8
from ..ir.groupings import GROUPINGS, OF_SIZES
from ..problem import Problem
from ..runtime.torch_tensors import torch, torch_dtype
from . import grouped_torch
from .data import NORMAL, Data
from .providers import Call
from .select import Offer
from .shapes import Shape, rows_held, rows_of

ALONE = ", one"  # ends the name of a provider that does one GEMM in place of all groups'
TABLES = {"masked": "group_rows", "ends": "group_ends", "rows": "row_groups"}
THEIR_STEP = 16  # rows: a multiple that _scaled_mm takes
THEIR_LEAST = 32  # of _int_mm, which takes no 16


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """What one launch reads and writes. tables: the device tables, by the name ops gives them."""

    a: Any
    b: Any
    out: Any
    tables: dict[str, Any]
    rows: tuple[int, ...]  # of each group


def calls(
    p: Problem, shape: Shape, config: Config, data: Data = NORMAL, fresh: bool = False
) -> dict[str, Call]:
    """gemmgen, and torch's GEMM of one group's B with the rows of all groups (a batch: `torch.bmm` where it
    takes the dtype): the same products, without the groups; and torch's own groups. Torch's FP8 has
    per-tensor scales, and fast accumulation unless gemmgen's family is as accurate without; its INT8 leaves
    INT32. `fresh`: as of `providers.Provider`."""
    t = _tensors(p, shape, data)
    return {
        "gemmgen": _ours(p, t, config, data, fresh),
        reference(p): _theirs(p, t, data, fresh),
        **grouped_torch.calls(p, t, fresh),
    }


def reference(p: Problem) -> str:
    """The provider that ratios are taken to."""
    if p.a.integer:
        return f"torch._int_mm{ALONE}"
    if p.a in FP8:
        return f"torch._scaled_mm{ALONE}"
    return "torch.bmm" if p.grouping == "batched" else f"torch.mm{ALONE}"


def offers(p: Problem) -> tuple[Offer, ...]:
    """What `calls` makes calls of, and `--providers` selects."""
    return (
        Offer(name="gemmgen", library="gemmgen", takes=lambda p: True),
        Offer(name=reference(p), library="torch", takes=lambda p: True),
        Offer(name=grouped_torch.NAME, library="torch", takes=grouped_torch.takes),
    )


def _tensors(p: Problem, shape: Shape, data: Data) -> Tensors:
    groups, mean, n, k = shape
    rows, g = rows_of(p, groups, mean), GROUPINGS[p.grouping]
    m = rows_held(p, rows)
    layout = OF_SIZES[p.grouping](m, list(rows), p.alignment * g.aligned)
    name = TABLES.get(p.grouping)
    table = torch().tensor(layout.table, dtype=torch().int32, device="cuda")
    lead = (groups,) * g.rows
    return Tensors(
        a=data.operand(*lead, m, k, dtype=p.a, depth=k),
        b=data.operand(groups, n, k, dtype=p.b, depth=k),
        out=torch().empty(*lead, m, n, device="cuda", dtype=torch_dtype(p.d)),
        tables={name: table} if name else {},
        rows=rows,
    )


def _ours(p: Problem, t: Tensors, config: Config, data: Data, fresh: bool) -> Call:
    name = {"batched": "batched_gemm", "masked": "masked_gemm"}.get(p.grouping, "grouped_gemm")
    given = {**t.tables, "config": config, "out_dtype": p.d.name}
    given["out"] = None if fresh else t.out
    if p.grouping in ("rows", "ends"):
        given["alignment"] = p.alignment
    if p.family == "fp8_block":
        name, given = f"fp8_block_{name}", given | _block_scales(t, data, fresh)
    elif p.a in FP8:
        accurate = {"accurate": p.family == "fp8"}
        name, given = f"fp8_{name}", given | accurate | _vector_scales(t, data)
    elif p.a.integer:
        name, given = f"int8_{name}", given | ({} if p.d.integer else _vector_scales(t, data))
    function = getattr(ops, name)
    return lambda: function(a=t.a, b=t.b, **given)


def _block_scales(t: Tensors, data: Data, fresh: bool) -> dict[str, Any]:
    blocks = -(-t.a.shape[-1] // ops.SCALE_BLOCK)
    columns = -(-t.b.shape[1] // ops.SCALE_BLOCK)
    scale_a = data.row_scales(*t.a.shape[:-1], blocks)
    return {
        "scale_a": scale_a.contiguous() if fresh else scale_a,
        "scale_b": data.scales(t.b.shape[0], columns, blocks),
        "scale_a_layout": "row" if fresh else "mn",
    }


def _vector_scales(t: Tensors, data: Data) -> dict[str, Any]:
    """Of each row, and of each column of each group."""
    return {"scale_a": data.scales(*t.a.shape[:-1]), "scale_b": data.scales(*t.b.shape[:-1])}


def _theirs(p: Problem, t: Tensors, data: Data, fresh: bool) -> Call:
    if reference(p) == "torch.bmm":
        shape, dtype = t.out.shape, t.a.dtype
        batch = None if fresh else torch().empty(*shape, device="cuda", dtype=dtype)
        return lambda: torch().bmm(t.a, t.b.mT, out=batch)
    m = -(-sum(t.rows) // THEIR_STEP) * THEIR_STEP
    m = max(m, THEIR_LEAST) if p.a.integer else m
    k, n = t.a.shape[-1], t.b.shape[1]
    a, b = data.operand(m, k, dtype=p.a, depth=k), t.b[0].T
    dtype = torch().int32 if p.a.integer else t.out.dtype if p.a in FP8 else t.a.dtype
    out = None if fresh else torch().empty(m, n, device="cuda", dtype=dtype)
    if p.a.integer:
        return lambda: torch()._int_mm(a, b, out=out)
    if p.a not in FP8:
        return lambda: torch().mm(a, b, out=out)
    one, fast = torch().ones((), device="cuda"), p.family != "fp8"
    return lambda: torch()._scaled_mm(a, b, one, one, out_dtype=dtype, use_fast_accum=fast, out=out)
