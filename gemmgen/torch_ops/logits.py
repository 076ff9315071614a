"""`gemmgen.ops.fp8_mqa_logits` in torch's dispatcher."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import DTYPES, E4M3, F32, S32
from ..ir.expr import ROW_SUMS
from ..ops import logits
from ..runtime.torch_tensors import dtype_of, torch
from . import of_experts
from .made import empty
from .registration import config_of

SCHEMA = (
    "fp8_mqa_logits(Tensor q, Tensor kv, Tensor kv_scale, Tensor weights, Tensor window_first, Tensor window_end, *, "
    'str out_dtype="f32", str config="") -> Tensor'
)
Shape = tuple[int, ...]
TENSORS = ("q", "kv", "kv_scale", "weights", "window_first", "window_end")


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
    given = dict(zip(TENSORS, tensors, strict=True))
    if out_dtype not in logits.OUTPUTS:
        raise ArgumentError("out_dtype", out_dtype, f"must be one of {', '.join(logits.OUTPUTS)}")
    config_of(config)
    dtypes = (E4M3, E4M3, F32, F32, S32, S32)
    for (name, t), dtype, rank in zip(given.items(), dtypes, (3, 2, 1, 2, 1, 1), strict=True):
        dtype_of(name, t, (dtype,))
        if t.dim() != rank:
            raise ArgumentError(f"{name} shape", tuple(t.shape), f"must have {rank} dimensions")
    queries, heads, depth = given["q"].shape
    keys = given["kv"].shape[0]
    if heads not in ROW_SUMS:
        raise ArgumentError("q heads", heads, f"must be one of {', '.join(map(str, ROW_SUMS))}")
    wanted = {
        "kv": (keys, depth),
        "kv_scale": (keys,),
        "weights": (queries, heads),
        "window_first": (queries,),
        "window_end": (queries,),
    }
    for name, sides in wanted.items():
        got = tuple(given[name].shape)
        if any(x != y for x, y in zip(got, sides, strict=True)):
            raise ArgumentError(f"{name} shape", got, f"must be {list(sides)}")
    return empty((queries, keys), DTYPES[out_dtype], given["q"].device)
