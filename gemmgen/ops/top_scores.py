"""The keys with the largest scores of an indexer, in a row or in pages, without a matrix of all scores: DeepSeek V3.2's sparse attention."""

from __future__ import annotations

from typing import Any

from ..config import Config
from ..errors import ArgumentError
from ..ir.counts import MOST_SIDE
from ..ir.dtypes import E4M3, F32, S32
from ..runtime.torch_tensors import check_tensor, require_tensor, torch
from . import paged_logits, top_keys
from .logits import fp8_mqa_logits, heads_of
from .tensors import check_number
from .top_keys import MOST

SCORE_BYTES = 4
MOST_BYTES = 128 << 20  # of scores at once
STEP = 512  # queries: enough for all SMs, and with any number of heads whole tiles


def fp8_mqa_top_k(
    q: Any,
    kv: Any,
    kv_scale: Any,
    weights: Any,
    window_first: Any,
    window_end: Any,
    count: int,
    *,
    columns: int | None = None,
    config: Config | None = None,
) -> Any:
    """int32 [S, count]: of each query the keys of its window whose `fp8_mqa_logits` are the `count` largest, in rising order; -1 behind them where the window has
    fewer.

    The tensors are torch's, as `fp8_mqa_logits` takes them; without keys all is -1. count: 1 to 4096. columns: None: N; or how many keys a window has at most: what lies behind so many is left out.
    Of equal scores the first are taken, NaN is larger than all others.

    Scores of some queries at a time are written and read back: 128 MiB of them, or of 512 queries where those have more. So no matrix [S, N] is anywhere. Two launches for as many queries,
    on torch's current stream. The host waits for nothing, and a CUDA graph may hold it. config: of the scores' kernel; None: chosen. Raises as `fp8_mqa_logits`.
    """
    tables = {"window_first": window_first, "window_end": window_end}
    tensors = {"q": q, "kv": kv, "kv_scale": kv_scale, "weights": weights, **tables}
    for name, x in tensors.items():
        require_tensor(name, x)
    check_number("count", count, 1, MOST)
    if columns is not None:
        check_number("columns", columns, 1, MOST_SIDE)
    heads = heads_of(q)
    queries, depth = q.shape[0], q.shape[2]
    (keys, _) = check_tensor("kv", kv, E4M3, (None, depth), q.device, contiguous=True)
    check_tensor("kv_scale", kv_scale, F32, (keys,), q.device)
    check_tensor("weights", weights, F32, (queries, heads), q.device)
    for name, bound in tables.items():
        check_tensor(name, bound, S32, (queries,), q.device)
        if queries > 1 and bound.stride(0) != 1:
            raise ArgumentError(f"{name} strides", tuple(bound.stride()), "must be contiguous")
    wide = max(1, keys if columns is None else min(columns, keys))
    return found((*tensors.values(),), count, wide, config)


def found(given: tuple[Any, ...], count: int, columns: int, config: Config | None) -> Any:
    """Of arguments that are checked. columns: of a row of scores."""
    q, kv, kv_scale, weights, window_first, window_end = given
    queries, keys = q.shape[0], kv.shape[0]
    at_once = rows_at_once(queries, columns)
    places = torch().empty((queries, count), dtype=torch().int32, device=q.device)
    if not keys:
        return places.fill_(-1)
    room = torch().empty((at_once, -(-columns // 4) * 4), dtype=torch().float32, device=q.device)
    for begin in range(0, max(queries, 1), at_once):
        part = slice(begin, min(begin + at_once, queries))
        first, end = window_first[part], window_end[part]
        scores = room[: part.stop - begin, :columns]
        of = (q[part], kv, kv_scale, weights[part], first, end)
        fp8_mqa_logits(*of, scores, columns=columns, config=config)
        top_keys.launched(scores, count, first, end, places[part], compact=True, keys=keys)
    return places


def fp8_paged_mqa_top_k(
    q: Any,
    kv: Any,
    kv_scale: Any,
    weights: Any,
    context_lens: Any,
    block_table: Any,
    max_context_len: int,
    count: int,
    *,
    config: Config | None = None,
) -> Any:
    """int32 [B, Q, count]: of each query the places, in its sequence, of the keys whose `fp8_paged_mqa_logits` are the `count` largest, in rising order; -1 behind
    them where the context has fewer. The key at place j is row j % R of page block_table[s, j // R].

    The tensors are torch's, as `fp8_paged_mqa_logits` takes them. max_context_len: how many keys a context has at most: what lies behind so many is left out. count: 1 to
    4096. Of equal scores the first are taken, NaN is larger than all others.

    Scores of some sequences at a time are written and read back, as in `fp8_mqa_top_k`: 128 MiB of them, or of 512 queries, or of one sequence, where those have more. Two launches for as many
    sequences, on torch's current stream. The host waits for nothing, and a CUDA graph may hold it. config: of the scores' kernel; None: chosen. Raises as `fp8_paged_mqa_logits`.
    """
    check_number("count", count, 1, MOST)
    given = q, kv, kv_scale, weights, context_lens, block_table
    paged_logits.checked(*given, max_context_len)
    return found_in_pages(given, count, max_context_len, config)


def found_in_pages(given: tuple[Any, ...], count: int, columns: int, config: Config | None) -> Any:
    """Of arguments that are checked. columns: of a row of scores."""
    q, kv, kv_scale, weights, context_lens, block_table = given
    sequences, queries = q.shape[:2]
    at_once = max(1, rows_at_once(sequences * queries, columns) // queries)
    places = torch().empty((sequences, queries, count), dtype=torch().int32, device=q.device)
    sides = (min(at_once, sequences), queries, -(-columns // 4) * 4)
    room = torch().empty(sides, dtype=torch().float32, device=q.device)
    for begin in range(0, sequences, at_once):
        part = slice(begin, min(begin + at_once, sequences))
        scores, ends = room[: part.stop - begin][..., :columns], context_lens[part]
        of = (q[part], kv, kv_scale, weights[part], ends, block_table[part])
        paged_logits.fp8_paged_mqa_logits(*of, columns, scores, config=config)
        rows, out = scores.flatten(0, 1), places[part].flatten(0, 1)
        top_keys.launched(rows, count, None, ends.flatten(), out)
    return places


def rows_at_once(queries: int, columns: int) -> int:
    """Queries whose scores are there at once, in rows that begin at multiples of 16 bytes."""
    fit = MOST_BYTES // (SCORE_BYTES * (-(-columns // 4) * 4)) // STEP * STEP
    return max(1, min(queries, max(STEP, fit)))
