"""Scores of queries and keys, summed over heads in windows: DeepSeek V3.2's lightning indexer."""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..config import Config
from ..epilogues import mqa_logits as scores
from ..errors import ArgumentError
from ..ir.counts import MOST_SIDE
from ..ir.dtypes import E4M3, F32, S32
from ..ir.expr import ROW_SUMS
from ..problem import Problem
from ..runtime.torch_tensors import check_tensor
from .calls import operand_shape, output_dtype, run
from .front import front
from .names import ArgumentNames
from .tensors import check_number

OUTPUTS = ("f32", "bf16", "f16")
NAMED = ArgumentNames(names={"a": "q", "b": "kv", "column_scale": "kv_scale", "shape": "q shape"})


@front
def fp8_mqa_logits(
    q: Any,
    kv: Any,
    kv_scale: Any,
    weights: Any,
    window_first: Any,
    window_end: Any,
    out: Any = None,
    *,
    out_dtype: str = "f32",
    columns: int | None = None,
    config: Config | None = None,
) -> Any:
    """`out[i, j] = kv_scale[j] * sum over h of weights[i, h] * max(0, q[i, h] . kv[j])` for window_first[i] <= j < window_end[i],
    minus infinity for other j. Of all heads at once; the products' sums stay in the tensor core, the sum over heads in FP32, in one
    order whatever the shape.

    q: float8_e4m3fn [S, H, D], H 8, 16, 32, 64 or 128, contiguous along D, the heads of a query one after the other, rows (also padded)
    at multiples of 16 bytes. kv: float8_e4m3fn [N, D], contiguous along D, row stride a multiple of 16 bytes.
    kv_scale: float32 [N]. weights: float32 [S, H]. window_first, window_end: int32 [S], on the device; a window may be empty, end before
    it begins or reach past N; none begins below 0. All four dense.
    columns: None, or how many `out` has whose rows begin with their windows: `out[i, j]` is then the score of key window_first[i] + j, and what no window
    has, or `out` has no column for, is not written: a row ends with what its memory held.
    out: [S, N], or [S, columns], of `out_dtype` ("f32", "bf16", "f16"), contiguous along N, row stride a multiple of 16 bytes; allocated if None (with
    rows padded where its columns are not). S = 0 returns at once.
    config: None: chosen. What no window reaches is not multiplied. Runs on torch's current stream; the host waits for nothing, and a
    CUDA graph may hold it. Raises as `fp8_block_gemm`.
    """
    if columns is not None:
        check_number("columns", columns, 1, MOST_SIDE)
    p = Problem(
        family=recipes.DENSE,
        a=E4M3,
        b=E4M3,
        d=output_dtype(out_dtype, OUTPUTS),
        epilogue=scores(heads_of(q)),
        compact=columns is not None,
    )
    queries, heads, depth = q.shape
    (keys, _) = check_tensor("kv", kv, E4M3, (None, depth), q.device, contiguous=True)
    check_tensor("kv_scale", kv_scale, F32, (keys,), q.device)
    check_tensor("weights", weights, F32, (queries, heads), q.device)
    for name, bound in (("window_first", window_first), ("window_end", window_end)):
        check_tensor(name, bound, S32, (queries,), q.device)
    given = {
        "weights": weights,
        "column_scale": kv_scale,
        "window_first": window_first,
        "window_end": window_end,
    }
    with NAMED:
        a = rows_of(q)
        shape = operand_shape(p, a, kv)
        return run(p, config, a, kv, out, shape, {}, {}, given, room=columns or 0)


def heads_of(q: Any) -> int:
    """Raises ArgumentError unless `q` is [S, H, D] of a number of heads that a quad sums."""
    check_tensor("q", q, E4M3, (None, None, None), contiguous=True)
    return check_heads(int(q.shape[1]))


def check_heads(heads: int) -> int:
    """`heads`, if a quad sums as many. Raises ArgumentError."""
    if heads not in ROW_SUMS:
        raise ArgumentError("q heads", heads, f"must be one of {', '.join(map(str, ROW_SUMS))}")
    return heads


def rows_of(q: Any) -> Any:
    """[..., S * H, D] of [..., S, H, D], the same memory. Raises ArgumentError where those rows have no one stride."""
    *lead, queries, heads, depth = q.shape
    if queries > 1 and q.stride(-3) != heads * q.stride(-2):
        allowed = f"must be {heads} times that between heads, {q.stride(-2)}"
        raise ArgumentError("q stride between queries", q.stride(-3), allowed)
    return q.reshape((*lead, queries * heads, depth))
