"""`gemmgen.ops.fp8_mqa_logits` in torch's dispatcher."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

from ..ir.counts import MOST_SIDE
from ..ir.dtypes import E4M3, F32, S32
from ..ops import logits
from ..ops.calls import output_dtype
from ..runtime.torch_tensors import torch
from . import of_experts
from .agreement import check, check_dims, require
from .made import empty
from .registration import config_of

SCHEMA = (
    "fp8_mqa_logits(Tensor q, Tensor kv, Tensor kv_scale, Tensor weights, Tensor window_first, Tensor window_end, *, "
    'str out_dtype="f32", SymInt? columns=None, str config="") -> Tensor'
)
Shape = tuple[int, ...]


@cache
def register_logits(library: Any) -> None:
    """In `library`."""
    of_experts.register(library, SCHEMA, _implementation, fake, "q")


def _implementation(
    *tensors: Any, out_dtype: str = "f32", columns: int | None = None, config: str = ""
) -> Any:
    made = config_of(config)
    return logits.fp8_mqa_logits(*tensors, out_dtype=out_dtype, columns=columns, config=made)


def on_cpu(
    *tensors: Any, out_dtype: str = "f32", columns: int | None = None, config: str = ""
) -> Any:
    """The scores of tensors of the CPU, by torch: sums over D and over heads in float64, rounded once. Of rows that begin with their windows what is not written is 0."""
    made = fake(*tensors, out_dtype=out_dtype, columns=columns, config=config)
    q, kv, scale, weights, first, end = tensors
    keys, wide = kv.double().T, weights.double()
    total = sum((q[:, h].double() @ keys).relu() * wide[:, h, None] for h in range(q.shape[1]))
    scores = total * scale.double()
    if columns is None:
        keys = torch().arange(kv.shape[0])
        outside = (keys < first[:, None]) | (keys >= end[:, None])
        return made.copy_(scores.masked_fill(outside, -torch().inf))
    if not kv.shape[0]:
        return made.zero_()
    keys = first[:, None].long() + torch().arange(columns)
    there = (keys < end[:, None]) & (keys < kv.shape[0])
    moved = scores.gather(1, keys.clamp(0, kv.shape[0] - 1))
    return made.copy_(moved.masked_fill(~there, 0.0))


def operations(q: Shape, kv: Shape, *rest: Any, **kwargs: Any) -> int:
    """As if every window had all keys: the host does not know better."""
    return int(2 * prod(q) * kv[0])


def fake(
    *tensors: Any, out_dtype: str = "f32", columns: int | None = None, config: str = ""
) -> Any:
    """Of symbolic sizes too."""
    q, kv, scale, weights, first, end = tensors
    dtype = output_dtype(out_dtype, logits.OUTPUTS)
    config_of(config)
    check_dims("q", q, 3)
    check_dims("kv", kv, 2)
    (queries, heads, depth), keys = q.shape, kv.shape[0]
    check("q", q, E4M3, (queries, logits.check_heads(heads), depth))
    check("kv", kv, E4M3, (keys, depth))
    check("kv_scale", scale, F32, (keys,))
    check("weights", weights, F32, (queries, heads))
    check("window_first", first, S32, (queries,))
    check("window_end", end, S32, (queries,))
    if columns is not None:
        for holds in (columns >= 1, columns <= MOST_SIDE):
            require(holds, "columns", columns, f"must be an integer from 1 to {MOST_SIDE}")
    return empty((queries, keys if columns is None else columns), dtype, q.device)
