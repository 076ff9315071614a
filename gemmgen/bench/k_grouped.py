"""Launches whose groups split K, and one GEMM of torch's over the K of all groups."""

from __future__ import annotations

from typing import Any

from .. import ops
from ..config import Config
from ..ir.dtypes import BF16, FP8
from ..ir.groupings import GROUPINGS
from ..problem import Problem
from ..runtime.torch_tensors import torch, torch_dtype
from .data import NORMAL, Data
from .grouped import ALONE
from .providers import Call
from .select import Offer
from .shapes import Shape, depths_of


def calls(
    p: Problem, shape: Shape, config: Config, data: Data = NORMAL, fresh: bool = False
) -> dict[str, Call]:
    """gemmgen, added to D in place if the problem says so, then `fresh` or not, and torch's GEMM over the K of
    all groups: the same products, but one D, in 16 bits, which it only writes. Its FP8 has per-tensor scales
    and fast accumulation, and does no scaling along K. `fresh`: as of `providers.Provider`."""
    groups, m, n, mean = shape
    depths = depths_of(groups, mean)
    table = torch().tensor(depths, dtype=torch().int32, device="cuda")
    given: dict[str, Any] = {"group_depths": table, "out_dtype": p.d.name, "config": config}
    if p.accumulate or not fresh:
        given["out"] = torch().zeros(groups, m, n, dtype=torch_dtype(p.d), device="cuda")
    if p.accumulate:
        given["c"] = given["out"]
    make = _fp8 if p.a in FP8 else _dense
    ours, theirs = make(p, (m, n, sum(depths)), given, data, fresh)
    return {"gemmgen": ours, reference(p): theirs}


def reference(p: Problem) -> str:
    """The provider that ratios are taken to."""
    return f"torch._scaled_mm{ALONE}" if p.a in FP8 else f"torch.mm{ALONE}"


def offers(p: Problem) -> tuple[Offer, ...]:
    """What `calls` makes calls of, and `--providers` selects."""
    return (
        Offer(name="gemmgen", library="gemmgen", takes=lambda p: True),
        Offer(name=reference(p), library="torch", takes=lambda p: True),
    )


def _fp8(
    p: Problem, shape: Shape, given: dict[str, Any], data: Data, fresh: bool
) -> tuple[Call, Call]:
    m, n, k = shape
    packing = GROUPINGS[p.grouping].depths
    a, b = data.operand(m, k, dtype=p.a, depth=k), data.operand(n, k, dtype=p.b, depth=k)
    ours = (a.view(-1), b.view(-1)) if packing == "flat" else (a, b)
    scales = [data.row_scales(side, k // ops.SCALE_BLOCK) for side in (m, n)]
    scale_a, scale_b = (s.contiguous() for s in scales) if fresh else scales
    given |= {"packing": packing, "scale_layout": "row" if fresh else "mn"}
    one, dtype = torch().ones((), device="cuda"), torch_dtype(BF16)
    out = None if fresh else torch().empty(m, n, dtype=dtype, device="cuda")
    return (
        lambda: ops.fp8_k_grouped_gemm(ours[0], scale_a, ours[1], scale_b, **given),
        lambda: torch()._scaled_mm(a, b.T, one, one, out_dtype=dtype, use_fast_accum=True, out=out),
    )


def _dense(
    p: Problem, shape: Shape, given: dict[str, Any], data: Data, fresh: bool
) -> tuple[Call, Call]:
    m, n, k = shape
    a_turned, b_turned = p.mn_major
    a = data.operand(*((k, m) if a_turned else (m, k)), dtype=p.a, depth=k)
    b = data.operand(*((k, n) if b_turned else (n, k)), dtype=p.b, depth=k)
    their_a, their_b = a.T if a_turned else a, b if b_turned else b.T
    out = None if fresh else torch().empty(m, n, dtype=torch_dtype(p.a), device="cuda")
    return (
        lambda: ops.k_grouped_gemm(a, b, layout=p.layout, **given),
        lambda: torch().mm(their_a, their_b, out=out),
    )
