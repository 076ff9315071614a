"""`gemmgen.ops.fp8_paged_mqa_logits` in torch's dispatcher."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import DTYPES, E4M3, F32, S32
from ..ir.pages import ROWS as PAGE
from ..ops import logits, paged_logits
from ..runtime.torch_tensors import dtype_of, torch
from . import of_experts
from .made import empty
from .registration import config_of

SCHEMA = (
    "fp8_paged_mqa_logits(Tensor q, Tensor kv, Tensor kv_scale, Tensor weights, Tensor context_lens, Tensor block_table, "
    'SymInt max_context_len, *, str out_dtype="f32", str config="") -> Tensor'
)
Shape = tuple[int, ...]
DTYPES_OF = {
    **dict.fromkeys(("q", "kv"), E4M3),
    **dict.fromkeys(("kv_scale", "weights"), F32),
    **dict.fromkeys(("context_lens", "block_table"), S32),
}


@cache
def register_paged_logits(library: Any) -> None:
    """In `library`."""
    of_experts.register(library, SCHEMA, _implementation, _fake, "q")


def _implementation(*given: Any, out_dtype: str = "f32", config: str = "") -> Any:
    return paged_logits.fp8_paged_mqa_logits(*given, out_dtype=out_dtype, config=config_of(config))


def on_cpu(*given: Any, out_dtype: str = "f32", config: str = "") -> Any:
    """The scores of tensors of the CPU, by torch: sums over D and over heads in float64, rounded once."""
    scores = _fake(*given, out_dtype=out_dtype, config=config)
    q, kv, scale, weights, ends, table, columns = given
    pages = table[:, : -(-columns // PAGE)].long()
    there = ((pages >= 0) & (pages < kv.shape[0]))[..., None]
    pages = pages.clamp(0, kv.shape[0] - 1)
    scales = torch().where(there, scale[pages].double(), 0.0).flatten(1)[:, :columns]
    outside = torch().arange(columns) >= ends[..., None]
    for s in range(q.shape[0]):
        keys = torch().where(there[s, :, :, None], kv[pages[s]].double(), 0.0)
        keys = keys.flatten(0, 1)[:columns]
        products = (q[s].double() @ keys.T).relu() * weights[s].double()[..., None]
        # What no context reaches may be NaN.
        scores[s] = (products.sum(1) * scales[s]).masked_fill(outside[s], -torch().inf)
    return scores


def operations(q: Shape, *rest: Any, **kwargs: Any) -> int:
    """As if every context were the longest that there is room for: the host does not know better."""
    columns = kwargs.get("max_context_len", rest[-1] if rest else 0)
    return int(2 * prod(q) * columns)


def _fake(*given: Any, out_dtype: str = "f32", config: str = "") -> Any:
    """Of symbolic sizes too."""
    *tensors, columns = given
    named = dict(zip(DTYPES_OF, tensors, strict=True))
    if out_dtype not in logits.OUTPUTS:
        raise ArgumentError("out_dtype", out_dtype, f"must be one of {', '.join(logits.OUTPUTS)}")
    config_of(config)
    for (name, t), rank in zip(named.items(), (4, 3, 2, 3, 2, 2), strict=True):
        dtype_of(name, t, (DTYPES_OF[name],))
        if t.dim() != rank:
            raise ArgumentError(f"{name} shape", tuple(t.shape), f"must have {rank} dimensions")
    sequences, queries, heads, depth = named["q"].shape
    pages, most = named["kv"].shape[0], named["block_table"].shape[1]
    logits.check_heads(heads)
    wanted = {
        "kv": (pages, PAGE, depth),
        "kv_scale": (pages, PAGE),
        "weights": (sequences, queries, heads),
        "context_lens": (sequences, queries),
        "block_table": (sequences, most),
    }
    for name, sides in wanted.items():
        got = tuple(named[name].shape)
        if any(x != y for x, y in zip(got, sides, strict=True)):
            raise ArgumentError(f"{name} shape", got, f"must be {list(sides)}")
    if columns < 1 or most * PAGE < columns:
        allowed = f"must be from 1 to {PAGE} * {most} keys"
        raise ArgumentError("max_context_len", columns, allowed)
    return empty((sequences, queries, columns), DTYPES[out_dtype], named["q"].device)
