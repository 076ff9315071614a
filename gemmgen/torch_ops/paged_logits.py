"""`gemmgen.ops.fp8_paged_mqa_logits` in torch's dispatcher."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

from ..ir.dtypes import E4M3, F32, S32
from ..ops import logits, paged_logits
from ..ops.calls import output_dtype
from ..runtime.torch_tensors import torch
from . import of_experts
from .agreement import check, check_dims, require
from .made import empty
from .registration import config_of

SCHEMA = (
    "fp8_paged_mqa_logits(Tensor q, Tensor kv, Tensor kv_scale, Tensor weights, Tensor context_lens, Tensor block_table, "
    'SymInt max_context_len, *, str out_dtype="f32", str config="") -> Tensor'
)
Shape = tuple[int, ...]


@cache
def register_paged_logits(library: Any) -> None:
    """In `library`."""
    of_experts.register(library, SCHEMA, _implementation, fake, "q")


def _implementation(*given: Any, out_dtype: str = "f32", config: str = "") -> Any:
    return paged_logits.fp8_paged_mqa_logits(*given, out_dtype=out_dtype, config=config_of(config))


def on_cpu(*given: Any, out_dtype: str = "f32", config: str = "") -> Any:
    """The scores of tensors of the CPU, by torch: sums over D and over heads in float64, rounded once."""
    scores = fake(*given, out_dtype=out_dtype, config=config)
    q, kv, scale, weights, ends, table, columns = given
    pages = table[:, : -(-columns // kv.shape[1])].long()
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


def fake(*given: Any, out_dtype: str = "f32", config: str = "") -> Any:
    """Of symbolic sizes too."""
    q, kv, scale, weights, ends, table, columns = given
    dtype = output_dtype(out_dtype, logits.OUTPUTS)
    config_of(config)
    check_dims("q", q, 4)
    check_dims("kv", kv, 3)
    check_dims("block_table", table, 2)
    (sequences, queries, heads, depth), pages, most = q.shape, kv.shape[0], table.shape[1]
    check("q", q, E4M3, (sequences, queries, logits.check_heads(heads), depth))
    rows = paged_logits.rows_of_page(kv)
    check("kv", kv, E4M3, (pages, rows, depth))
    check("kv_scale", scale, F32, (pages, rows))
    check("weights", weights, F32, (sequences, queries, heads))
    check("context_lens", ends, S32, (sequences, queries))
    check("block_table", table, S32, (sequences, most))
    for holds in (columns >= 1, columns <= rows * most):
        require(holds, "max_context_len", columns, f"must be from 1 to {rows} * {most} keys")
    return empty((sequences, queries, columns), dtype, q.device)
