"""DeepGEMM's grouped and masked GEMMs, beside gemmgen's, where it is installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..ir.dtypes import BF16, E4M3
from ..ir.expr import ACC
from ..ir.groupings import OF_SIZES
from ..problem import Problem
from ..recipes import recipe
from ..runtime.torch_tensors import torch

NAME = "deep_gemm"
ALIGNED = 128  # rows: where its groups begin


def takes(p: Problem) -> bool:
    """FP8 with block scales, and BF16 weights, of groups of rows."""
    r, plain = recipe(p.family), p.epilogue == ACC and not p.accumulate
    plain_bf16 = p.a == BF16 and not (r.promotes or p.form)
    operands = (r.scales_blocks and p.a == p.b == E4M3) or plain_bf16
    groups = p.grouping in ("masked", "rows", "ends") and p.alignment == ALIGNED
    return operands and groups and plain and p.d == BF16 and p.layout == "nt"


def calls(p: Problem, t: Any, fresh: bool) -> dict[str, Any]:
    """Of the tensors of one launch (`grouped.Tensors`). Its table is by row where gemmgen's is by group; what it is told
    of masked rows is their mean."""
    if not takes(p) or not find_spec(NAME):
        return {}
    scaled = recipe(p.family).scaled
    family = "m_grouped_fp8_gemm_nt" if scaled else "m_grouped_bf16_gemm_nt"
    a, b = ((t.a, t.given["scale_a"]), (t.b, t.given["scale_b"])) if scaled else (t.a, t.b)
    mine = torch().empty_like(t.out)
    if p.grouping == "masked":
        name, told = "masked", [t.given["table"], -(-sum(t.sizes) // len(t.sizes))]
    else:
        rows = OF_SIZES["rows"](t.a.shape[0], list(t.sizes), p.alignment).table
        name, told = "contiguous", [torch().tensor(rows, dtype=torch().int32, device=t.a.device)]

    def call() -> Any:
        out = torch().empty_like(t.out) if fresh else mine
        getattr(import_module(NAME), f"{family}_{name}")(a, b, out, *told)
        return out

    return {NAME: call}
