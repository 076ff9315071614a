"""`gemmgen.ops.top_k`, `fp8_mqa_top_k` and `fp8_paged_mqa_top_k` in torch's dispatcher."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..ir.counts import MOST_SIDE
from ..ops import top_keys, top_scores
from ..ops.tensors import check_number
from ..ops.top_keys import MOST
from ..runtime.torch_tensors import torch
from . import logits, of_experts, paged_logits
from .agreement import require
from .registration import config_of

SCHEMA = "top_k(Tensor x, int count, *, Tensor? first=None, Tensor? end=None) -> Tensor"
OF_SCORES = (
    "fp8_mqa_top_k(Tensor q, Tensor kv, Tensor kv_scale, Tensor weights, Tensor window_first, Tensor window_end, int count, *, "
    'SymInt? columns=None, str config="") -> Tensor'
)
IN_PAGES = (
    "fp8_paged_mqa_top_k(Tensor q, Tensor kv, Tensor kv_scale, Tensor weights, Tensor context_lens, Tensor block_table, SymInt max_context_len, int count, *, "
    'str config="") -> Tensor'
)


@cache
def register_top_keys(library: Any) -> None:
    """In `library`."""
    of_experts.register(library, SCHEMA, _top_k, _fake, "x")
    of_experts.register(library, OF_SCORES, _of_scores, _fake_of_scores, "q")
    of_experts.register(library, IN_PAGES, _in_pages, _fake_in_pages, "q")


def _top_k(x: Any, count: int, *, first: Any = None, end: Any = None) -> Any:
    return top_keys.top_k(x.detach(), count, first=first, end=end)


def _fake(x: Any, count: int, *, first: Any = None, end: Any = None) -> Any:
    top_keys.check(x, count, first, end)
    return x.new_empty((x.shape[0], count), dtype=torch().int32)


def _of_scores(*given: Any, columns: int | None = None, config: str = "") -> Any:
    return top_scores.fp8_mqa_top_k(*given, columns=columns, config=config_of(config))


def on_cpu(*given: Any, columns: int | None = None, config: str = "") -> Any:
    """Of tensors of the CPU, by scores in float64, rounded once."""
    _fake_of_scores(*given, columns=columns, config=config)
    *tensors, count = given
    (first, end), keys = tensors[-2:], tensors[1].shape[0]
    wide = max(1, keys if columns is None else min(columns, keys))
    scores = logits.on_cpu(*tensors, columns=wide, config=config)
    return top_keys.by_torch(scores, count, first, end, compact=True, keys=keys)


def operations(q: Any, kv: Any, *rest: Any, **given: Any) -> int:
    """Of the scores."""
    return logits.operations(q, kv)


def _fake_of_scores(*given: Any, columns: int | None = None, config: str = "") -> Any:
    *tensors, count = given
    check_number("count", count, 1, MOST)
    if columns is not None:
        for holds in (columns >= 1, columns <= MOST_SIDE):
            require(holds, "columns", columns, f"must be an integer from 1 to {MOST_SIDE}")
    scores = logits.fake(*tensors, columns=None, config=config)
    return scores.new_empty((scores.shape[0], count), dtype=torch().int32)


def _in_pages(*given: Any, config: str = "") -> Any:
    return top_scores.fp8_paged_mqa_top_k(*given, config=config_of(config))


def in_pages_on_cpu(*given: Any, config: str = "") -> Any:
    """Of tensors of the CPU, by scores in float64, rounded once."""
    _fake_in_pages(*given, config=config)
    *tensors, count = given
    scores = paged_logits.on_cpu(*tensors, config=config)
    rows, ends = scores.flatten(0, 1), tensors[4].flatten()
    return top_keys.by_torch(rows, count, None, ends).view(*scores.shape[:2], count)


def operations_in_pages(*shapes: Any, **given: Any) -> int:
    """Of the scores."""
    return paged_logits.operations(*shapes[:7], **given)


def _fake_in_pages(*given: Any, config: str = "") -> Any:
    *tensors, count = given
    check_number("count", count, 1, MOST)
    scores = paged_logits.fake(*tensors, config=config)
    return scores.new_empty((*scores.shape[:2], count), dtype=torch().int32)
