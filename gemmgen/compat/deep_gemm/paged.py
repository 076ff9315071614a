"""The lightning indexer's scores, over keys in pages."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...errors import ArgumentError, UnsupportedProblem
from ...ir.counts import MOST_SIDE
from ...ir.dtypes import S32
from ...ir.pages import ROWS
from ...ops.names import ArgumentNames
from ...ops.tensors import check_number
from ...runtime.torch_tensors import dtype_of, require_tensor, torch
from .logits import of_pair, output_of, room

IN_PAGES = ArgumentNames(names=dict.fromkeys(("kv", "kv_scale", "cache"), "kv_cache"))
MOST_SMS = 1024  # more than a GPU has


def fp8_paged_mqa_logits(
    q: Any,
    kv_cache: Any,
    weights: Any,
    context_lens: Any,
    block_table: Any,
    schedule_meta: Any,
    max_context_len: int,
    clean_logits: bool = False,
    indices: Any = None,
) -> Any:
    """float32 [B * Q, max_context_len]: `scale[j] * sum over h of weights[s * Q + i, h] * max(0, q[s, i, h] . key[j])` in row s * Q + i
    for j < context_lens[s, i], minus infinity for other j; key and scale of j are the (j % R)-th of page block_table[s, j // R], R the keys of a page, 64 or 32.

    q: float8_e4m3fn [B, Q, H, D]; kv_cache: uint8 [pages, R, 1, D + 4], of each page R D codes, then R scales; weights: float32
    [B * Q, H], copied unless it is dense; context_lens: int32 [B, Q], or [B], of which the last query sees all keys and each before it one less, in two launches of torch's more if Q > 1; block_table: int32 [B, T]. As
    `gemmgen.ops.fp8_paged_mqa_logits` for what is allowed; the result's rows are multiples of 1024 bytes.
    schedule_meta: as `get_paged_mqa_logits_metadata` returns it, or None: it is not read. clean_logits: True or False: other columns are
    minus infinity in both cases, written by the same kernel. indices: None; of others UnsupportedProblem. Raises as `gemmgen.ops`.
    """
    _refuse("fp8_paged_mqa_logits", indices)
    return _logits(
        q, kv_cache, weights, context_lens, block_table, max_context_len, clean_logits, "f32"
    )


def fp8_fp4_paged_mqa_logits(
    q: tuple[Any, Any],
    kv_cache: Any,
    weights: Any,
    context_lens: Any,
    block_table: Any,
    schedule_meta: Any,
    max_context_len: int,
    clean_logits: bool = False,
    logits_dtype: Any = None,
    indices: Any = None,
) -> Any:
    """`fp8_paged_mqa_logits` of q[0], into `logits_dtype`, torch.float32 (also None) or torch.bfloat16. q: (tensor, None): scales of q are
    of FP4 and of Blackwell's kernels, for which it raises UnsupportedProblem, as for `indices`, of queries of any number."""
    of = "fp8_fp4_paged_mqa_logits"
    dtype = output_of(logits_dtype)
    _refuse(of, indices)
    given = kv_cache, weights, context_lens, block_table, max_context_len, clean_logits
    return _logits(of_pair(of, q), *given, dtype)


def get_paged_mqa_logits_metadata(
    context_lens: Any, block_kv: int, num_sms: int, indices: Any = None
) -> Any:
    """int32 [num_sms + 1, 2], zeros: what a caller hands to `fp8_paged_mqa_logits` as `schedule_meta`, whose kernel needs none: each CTA
    finds its tiles by itself.

    context_lens: int32 [B, Q] or [B]. block_kv: keys of a page, 64 or 32. num_sms: at least 1. indices: None."""
    dtype_of("context_lens", context_lens, (S32,))
    if context_lens.dim() not in (1, 2):
        raise ArgumentError(
            "context_lens shape", tuple(context_lens.shape), "must be [B, Q] or [B]"
        )
    if type(block_kv) is not int or block_kv not in ROWS:
        raise ArgumentError("block_kv", block_kv, f"must be {' or '.join(map(str, ROWS))}")
    check_number("num_sms", num_sms, 1, MOST_SMS)
    _refuse("get_paged_mqa_logits_metadata", indices)
    return torch().zeros((num_sms + 1, 2), dtype=torch().int32, device=context_lens.device)


def _refuse(function: str, indices: Any) -> None:
    if indices is not None:
        raise UnsupportedProblem(f"{function}: indices are of queries of any number; must be None")


def _of_queries(lengths: Any, queries: int) -> Any:
    """int32 [B, Q] of [B, Q] or [B], whose last query sees all and each before it one key less."""
    if lengths.dim() != 1:
        return lengths
    if queries == 1:
        return lengths.reshape(-1, 1)
    dtype_of("context_lens", lengths, (S32,))
    less = torch().arange(1 - queries, 1, dtype=torch().int32, device=lengths.device)
    return (lengths.unsqueeze(1) + less).clamp_(min=0)


def _logits(
    q: Any,
    cache: Any,
    weights: Any,
    lengths: Any,
    table: Any,
    longest: int,
    clean: bool,
    dtype: str,
) -> Any:
    if not isinstance(clean, bool):
        raise ArgumentError("clean_logits", clean, "must be True or False")
    for name, t in (("q", q), ("weights", weights), ("context_lens", lengths)):
        require_tensor(name, t)
    if q.dim() != 4:
        raise ArgumentError("q shape", tuple(q.shape), "must be [B, Q, H, D]")
    sequences, queries, heads, _ = q.shape
    if tuple(weights.shape) != (sequences * queries, heads):
        allowed = f"must be [{sequences * queries}, {heads}]"
        raise ArgumentError("weights shape", tuple(weights.shape), allowed)
    lengths = _of_queries(lengths, queries)
    check_number("max_context_len", longest, 1, MOST_SIDE)
    with IN_PAGES:
        kv, scale = ops.paged_cache(cache)
        wide = room(sequences * queries, longest, dtype, q.device)
        given = (q, kv, scale, weights.contiguous().view(sequences, queries, heads), lengths)
        out = wide.view(sequences, queries, wide.shape[1])[..., :longest]
        ops.fp8_paged_mqa_logits(*given, table, longest, out, out_dtype=dtype)
        return wide[..., :longest]
