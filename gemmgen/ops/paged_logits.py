"""The lightning indexer's scores of few queries of each sequence, whose keys lie in pages: decoding."""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..config import Config
from ..epilogues import mqa_logits as scores
from ..errors import ArgumentError
from ..ir.counts import MOST_SIDE, check_side
from ..ir.dtypes import E4M3, F32, S32
from ..ir.pages import COUNT, PAGES, PITCH, ROWS
from ..problem import Problem
from ..runtime.tensor_map import ALIGNMENT
from ..runtime.torch_tensors import check_tensor, require_tensor, torch, torch_dtype
from .calls import output_dtype, run
from .epilogue import Values
from .front import front
from .logits import OUTPUTS, check_heads, rows_of
from .names import ArgumentNames
from .tensors import check_number
from .told import ToldGroups

NAMES = {"a": "q", "b": "kv", "column_scale": "kv_scale", "window_end": "context_lens"}
NAMED = ArgumentNames(names=NAMES)
SCALE_BYTES = 4
NUMBERS = " or ".join(map(str, ROWS))


@front
def fp8_paged_mqa_logits(
    q: Any,
    kv: Any,
    kv_scale: Any,
    weights: Any,
    context_lens: Any,
    block_table: Any,
    max_context_len: int,
    out: Any = None,
    *,
    out_dtype: str = "f32",
    config: Config | None = None,
) -> Any:
    """`out[s, i, j] = scale[j] * sum over h of weights[s, i, h] * max(0, q[s, i, h] . key[j])` for 0 <= j < context_lens[s, i], minus
    infinity for other j; key and scale of j are row j % R of page block_table[s, j // R], R the keys of a page, 64 or 32. A score has the bits that
    `fp8_mqa_logits` gives it.

    q: float8_e4m3fn [B, Q, H, D], Q queries of each of B sequences, H 8, 16, 32, 64 or 128; contiguous along D, the heads of a sequence one
    after the other, rows and sequences (also padded) at multiples of 16 bytes.
    kv: float8_e4m3fn [pages, R, D], contiguous along D, rows and pages at multiples of 16 bytes. kv_scale: float32 [pages, R],
    contiguous along R. Both may be views of one cache: `paged_cache`.
    weights: float32 [B, Q, H]. context_lens: int32 [B, Q], not below 0. Both dense.
    block_table: int32 [B, T], contiguous along T, R T at least max_context_len. An entry that no context reaches may be anything; one that a
    context reaches and that is no page's is of keys that are 0.
    max_context_len: columns of `out`. out: [B, Q, max_context_len] of `out_dtype` ("f32", "bf16", "f16"), contiguous along its last
    dimension, others at multiples of 16 bytes; allocated if None (with rows padded where they are not). B = 0 returns at once.
    config: None: chosen. Of a sequence as many keys are loaded as its longest context has, up to the end of a tile. Runs on torch's
    current stream; the host waits for nothing, and a CUDA graph may hold it. Raises as `fp8_block_gemm`.
    """
    where = checked(q, kv, kv_scale, weights, context_lens, block_table, max_context_len)
    sequences, queries, heads, depth = q.shape
    p = Problem(
        family=recipes.DENSE,
        a=E4M3,
        b=E4M3,
        d=output_dtype(out_dtype, OUTPUTS),
        grouping="batched",
        paged=rows_of_page(kv),
        epilogue=scores(heads, from_first=True),
    )
    given = {"weights": weights, "column_scale": kv_scale, "window_end": context_lens}
    told = ToldGroups(count=sequences)
    shape = queries * heads, max_context_len, depth
    with NAMED:
        return run(p, config, rows_of(q), kv, out, shape, {}, where, given, groups=told)


def checked(
    q: Any,
    kv: Any,
    kv_scale: Any,
    weights: Any,
    context_lens: Any,
    block_table: Any,
    max_context_len: int,
) -> Values:
    """Where the pages are, and how many. Raises ArgumentError."""
    check_tensor("q", q, E4M3, (None, None, None, None), contiguous=True)
    sequences, queries, heads, depth = q.shape
    check_heads(heads)
    rows = rows_of_page(kv)
    for name, side in (("queries", queries), ("depth", depth)):
        check_side(f"q {name}", side)
    check_number("max_context_len", max_context_len, 1, MOST_SIDE)
    check_tensor("weights", weights, F32, (sequences, queries, heads), q.device)
    check_tensor("context_lens", context_lens, S32, (sequences, queries), q.device)
    where = _pages(kv, kv_scale, rows, depth, q.device)
    return where | _table(block_table, sequences, max_context_len, rows, q.device)


def paged_cache(cache: Any) -> tuple[Any, Any]:
    """`kv` and `kv_scale` of `fp8_paged_mqa_logits`: views of one cache, whose pages hold the codes of R keys, 64 or 32, and behind them
    their scales.

    cache: uint8 [pages, R, D + 4] or [pages, R, 1, D + 4], D a multiple of 16; a page is dense, pages (also padded) are at
    multiples of 16 bytes. Raises ArgumentError.
    """
    require_tensor("cache", cache)
    sides = tuple(cache.shape)
    if cache.dtype != torch().uint8:
        raise ArgumentError("cache dtype", str(cache.dtype), "must be torch.uint8")
    keys = sides[1] if len(sides) > 1 and sides[1] in ROWS else ROWS[0]
    inside = (keys, 1) if len(sides) == 4 else (keys,)
    row = sides[-1] if sides else 0
    depth = row - SCALE_BYTES
    if len(sides) < 3 or sides[1:-1] != inside or sides[0] < 1 or depth < 1 or depth % ALIGNMENT:
        allowed = f"must be [pages, R, D + 4] or [pages, R, 1, D + 4], R {NUMBERS}, D a multiple of {ALIGNMENT}"
        raise ArgumentError("cache shape", sides, allowed)
    pitch, *inner = cache.stride()
    if inner != [row, row, 1][-len(inner) :] or pitch < keys * row or pitch % ALIGNMENT:
        allowed = f"must be of dense pages at multiples of {ALIGNMENT} bytes"
        raise ArgumentError("cache strides", tuple(cache.stride()), allowed)
    kv = cache.view(torch_dtype(E4M3)).as_strided((sides[0], keys, depth), (pitch, depth, 1))
    words, before = (x // SCALE_BYTES for x in (keys * row, keys * depth))
    pages = cache.view(torch_dtype(F32)).as_strided((sides[0], words), (pitch // SCALE_BYTES, 1))
    return kv, pages.narrow(1, before, keys)


def rows_of_page(kv: Any) -> int:
    """Raises ArgumentError unless `kv` is [pages, R, D] of an R that pages may have."""
    require_tensor("kv", kv)
    if kv.dim() != 3 or kv.shape[1] not in ROWS:
        raise ArgumentError("kv shape", tuple(kv.shape), f"must be [pages, R, D], R {NUMBERS}")
    return int(kv.shape[1])


def _pages(kv: Any, kv_scale: Any, rows: int, depth: int, device: Any) -> Values:
    """How many pages there are. Raises ArgumentError."""
    pages, *_ = check_tensor("kv", kv, E4M3, (None, rows, depth), device, contiguous=True)
    check_side("kv pages", pages)
    check_tensor("kv_scale", kv_scale, F32, (pages, rows), device, contiguous=True)
    return {COUNT: pages}


def _table(table: Any, sequences: int, columns: int, rows: int, device: Any) -> Values:
    """Where each sequence's pages are named. Raises ArgumentError."""
    _, most = check_tensor("block_table", table, S32, (sequences, None), device, contiguous=True)
    if most * rows < columns:
        raise ArgumentError("max_context_len", columns, f"must be at most {rows} * {most} keys")
    return {PAGES: table.data_ptr(), PITCH: table.stride(0)}
