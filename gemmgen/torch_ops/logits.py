"""`gemmgen.ops.fp8_mqa_logits` in torch's dispatcher."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

from ..ir.dtypes import E4M3, F32, S32
from ..ops import logits
from ..ops.calls import output_dtype
from ..runtime.torch_tensors import torch
from . import of_experts
from .agreement import check, check_dims
from .made import empty
from .registration import config_of

SCHEMA = (
    "fp8_mqa_logits(Tensor q, Tensor kv, Tensor kv_scale, Tensor weights, Tensor window_first, Tensor window_end, *, "
    'str out_dtype="f32", str config="") -> Tensor'
)
Shape = tuple[int, ...]


@cache
def register_logits(library: Any) -> None:
    """In `library`."""
    of_experts.register(library, SCHEMA, _implementation, _fake, "q")


def _implementation(*tensors: Any, out_dtype: str = "f32", config: str = "") -> Any:
    return logits.fp8_mqa_logits(*tensors, out_dtype=out_dtype, config=config_of(config))


def on_cpu(*tensors: Any, out_dtype: str = "f32", config: str = "") -> Any:
    """The scores of tensors of the CPU, by torch: sums over D and over heads in float64, rounded once."""
    scores = _fake(*tensors, out_dtype=out_dtype, config=config)
    q, kv, scale, weights, first, end = tensors
    keys, wide = kv.double().T, weights.double()
    total = sum((q[:, h].double() @ keys).relu() * wide[:, h, None] for h in range(q.shape[1]))
    columns = torch().arange(kv.shape[0])
    outside = (columns < first[:, None]) | (columns >= end[:, None])
    scores.copy_((total * scale.double()).masked_fill(outside, -torch().inf))
    return scores


def operations(q: Shape, kv: Shape, *rest: Any, **kwargs: Any) -> int:
    """As if every window had all keys: the host does not know better."""
    return int(2 * prod(q) * kv[0])


def _fake(*tensors: Any, out_dtype: str = "f32", config: str = "") -> Any:
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
    return empty((queries, keys), dtype, q.device)
