"""Launches of several GEMMs, and one GEMM of torch's over as many rows, or over the K of all groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import ops
from ..config import Config
from ..ir.dtypes import FP8
from ..ir.groupings import GROUPINGS, OF_SIZES
from ..problem import Problem
from ..runtime.torch_tensors import torch, torch_dtype
from . import grouped_deep_gemm, grouped_torch, read, select
from .cases import arguments, block_scales, drawn, output
from .cases import columns as told_columns
from .data import NORMAL, Data
from .providers import Call, out_dtype, quick
from .select import FLOOR, Offer
from .shapes import Shape, depths_of, rows_held, rows_of

_DEEP_GEMM = Offer(name=grouped_deep_gemm.NAME, library="deep_gemm", takes=grouped_deep_gemm.takes)
SUM = "torch.einsum"
ALONE = ", one"  # ends the name of a provider that does one GEMM in place of all groups'
THEIR_STEP = 16  # rows: a multiple that _scaled_mm takes
THEIR_LEAST = 32  # of _int_mm, which takes no 16


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """What one launch reads and writes. wide: b in numbers, itself unless it is packed. given: the device table, scales and what the epilogue reads, by the name
    that `ops.multiply` gives them; `fresh` as a quantiser leaves them. sizes: rows of each group, or its K."""

    a: Any
    b: Any
    wide: Any
    out: Any
    given: dict[str, Any]
    sizes: tuple[int, ...]


def calls(
    p: Problem,
    shape: Shape,
    config: Config,
    data: Data = NORMAL,
    fresh: bool = False,
    *,
    floor: bool = False,
) -> dict[str, Call]:
    """gemmgen, added to D in place if the problem says so, and torch's GEMM of one group's B with the rows of all
    groups (a batch: `torch.bmm` where it takes the dtype; groups that split K: one D over the K of all): the same
    products, without the groups. And torch's own groups, and DeepGEMM's. Torch's FP8 has per-tensor scales, and fast
    accumulation unless gemmgen's family is as accurate without; its INT8 leaves INT32. `fresh`: as of
    `providers.Provider`. floor: with one that only reads the operands."""
    t = _tensors(p, shape, data, fresh)
    return {
        "gemmgen": _ours(p, t, config, fresh),
        one_gemm(p): _theirs(p, t, data, fresh),
        **grouped_torch.calls(p, t, fresh),
        **grouped_deep_gemm.calls(p, t, fresh),
        **({FLOOR: read.over(_operands(p, t))} if floor else {}),
    }


def reference(p: Problem) -> str:
    """The provider that ratios are taken to: who computes the same groups, of those installed DeepGEMM before torch;
    if nobody does, `one_gemm`."""
    if grouped_deep_gemm.takes(p) and not select.missing(_DEEP_GEMM):
        return _DEEP_GEMM.name
    if grouped_torch.takes(p) and grouped_torch.available():
        return grouped_torch.NAME
    return one_gemm(p)


def one_gemm(p: Problem) -> str:
    """torch's GEMM of as many products; its name ends with ALONE if it computes something else: one GEMM."""
    if p.a.integer:
        return f"torch._int_mm{ALONE}"
    if p.a in FP8:
        return f"torch._scaled_mm{ALONE}"
    if GROUPINGS[p.grouping].summed:
        return SUM
    return "torch.bmm" if p.grouping == "batched" else f"torch.mm{ALONE}"


def offers(p: Problem) -> tuple[Offer, ...]:
    """What `calls` makes calls of, and `--providers` selects."""
    return (
        Offer(name="gemmgen", library="gemmgen", takes=lambda p: True),
        Offer(name=one_gemm(p), library="torch", takes=lambda p: True),
        Offer(name=grouped_torch.NAME, library="torch", takes=grouped_torch.takes),
        _DEEP_GEMM,
        Offer(name=FLOOR, library=FLOOR, takes=lambda p: True),
    )


def _tensors(p: Problem, shape: Shape, data: Data, fresh: bool) -> Tensors:
    groups, m, n, k = shape
    g = GROUPINGS[p.grouping]
    if g.depths:
        sizes = depths_of(groups, k)
        split = k = sum(sizes)
    else:
        sizes = rows_of(p, groups, m)
        split = m = rows_held(p, sizes)
    table = OF_SIZES[p.grouping](split, list(sizes), p.alignment * g.aligned).table
    rows, columns, results = ((groups,) * x for x in (g.rows, g.columns, g.outputs))
    given = arguments(p, (m, n), groups, data) | block_scales(
        p, (*rows, m, k), (*columns, n, k), data, fresh
    )
    if g.table:
        given["table"] = torch().tensor(table, dtype=torch().int32, device=data.device)
    a, b, wide = drawn(p, (m, n, k), data, rows, columns)
    given |= told_columns(p, n)
    out = output(p, (*results, m), n, a.device)
    return Tensors(a=a, b=b, wide=wide, out=out, given=given, sizes=sizes)


def _ours(p: Problem, t: Tensors, config: Config, fresh: bool) -> Call:
    out = None if fresh and not p.accumulate else t.out
    return lambda: ops.multiply(p, t.a, t.b, out, config=config, **t.given)


def _operands(p: Problem, t: Tensors) -> tuple[read.Span, ...]:
    """B, and as many bytes of A as the rows of all groups have: where they lie apart, no fewer are read."""
    a, b = ((x, x.numel() * x.element_size()) for x in (t.a, t.b))
    if GROUPINGS[p.grouping].depths:
        return a, b
    return (t.a, sum(t.sizes) * t.a.shape[-2 if p.mn_major[0] else -1] * t.a.element_size()), b


def _theirs(p: Problem, t: Tensors, data: Data, fresh: bool) -> Call:
    a, b = t.a.mT if p.mn_major[0] else t.a, t.wide if p.mn_major[1] else t.wide.mT
    if one_gemm(p) == "torch.bmm":
        batch = None if fresh else torch().empty(*t.out.shape, device="cuda", dtype=t.a.dtype)
        return lambda: torch().bmm(a, b, out=batch)
    if one_gemm(p) == SUM:
        return lambda: torch().einsum("bmk,bkn->mn", a, b)
    if not GROUPINGS[p.grouping].depths:
        a, b = _all_rows(p, t, a.shape[-1], data), b[0]
    dtype = torch_dtype(out_dtype(p) if p.a in FP8 else p.a)
    dtype = torch().int32 if p.a.integer else dtype
    m, n = a.shape[0], b.shape[1]
    out = None if fresh else torch().empty(m, n, device="cuda", dtype=dtype)
    if p.a.integer:
        return lambda: torch()._int_mm(a, b, out=out)
    if p.a not in FP8:
        return lambda: torch().mm(a, b, out=out)
    one, fast = torch().ones((), device="cuda"), quick(p)
    return lambda: torch()._scaled_mm(a, b, one, one, out_dtype=dtype, use_fast_accum=fast, out=out)


def _all_rows(p: Problem, t: Tensors, k: int, data: Data) -> Any:
    """An A of as many rows as the groups have together, that torch's functions take."""
    m = -(-sum(t.sizes) // THEIR_STEP) * THEIR_STEP
    m = max(m, THEIR_LEAST) if p.a.integer else m
    return data.operand(m, k, dtype=p.a, depth=k)
