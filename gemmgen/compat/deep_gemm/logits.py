"""The lightning indexer's scores, over all keys."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...errors import ArgumentError, UnsupportedProblem
from ...ir.counts import MOST_SIDE
from ...ir.dtypes import BF16, DTYPES, F32
from ...ops.names import ArgumentNames
from ...runtime.torch_tensors import require_tensor, torch, torch_dtype
from .operands import Pair, pair
from .renamed import renamed

NAMES = {
    "kv": "kv[0]",
    "kv_scale": "kv[1]",
    "window_first": "cu_seq_len_k_start",
    "window_end": "cu_seq_len_k_end",
}
IN_LOGITS = ArgumentNames(names=NAMES)
OUTPUTS = (F32, BF16)
BEYOND, ROW_BYTES = (
    256,
    1024,
)  # columns that the peer's rows have room for, and what their size is a multiple of


@renamed(ks="cu_seq_len_k_start", ke="cu_seq_len_k_end")
def fp8_mqa_logits(
    q: Any,
    kv: Pair,
    weights: Any,
    cu_seq_len_k_start: Any,
    cu_seq_len_k_end: Any,
    clean_logits: bool | int = True,
    max_seqlen_k: int = 0,
    schedule_meta: Any = None,
) -> Any:
    """float32 [S, N]: `kv[1][j] * sum over h of weights[i, h] * max(0, q[i, h] . kv[0][j])` for cu_seq_len_k_start[i] <= j <
    cu_seq_len_k_end[i], minus infinity for other j.

    q: float8_e4m3fn [S, H, D]; kv: float8_e4m3fn [N, D] and float32 scales [N]; weights: float32 [S, H], copied unless it is dense;
    bounds: int32 [S], dense. As `gemmgen.ops.fp8_mqa_logits` for what is allowed; the result's rows are multiples of 1024 bytes.
    max_seqlen_k: above 0, what no window has more keys than: the result is [S, max_seqlen_k], and begins in each row with the window's first key; what is behind the last one is not
    written. clean_logits: then False. Of 0 True or False: other columns are minus infinity in both cases, written by the same kernel. A number there is max_seqlen_k, which
    DeepGEMM 2.8.1 has in its place. schedule_meta: not read. Raises as `gemmgen.ops`.
    """
    bounds = cu_seq_len_k_start, cu_seq_len_k_end
    return _logits(q, kv, weights, bounds, _longest(clean_logits, max_seqlen_k), "f32")


@renamed(ks="cu_seq_len_k_start", ke="cu_seq_len_k_end")
def fp8_fp4_mqa_logits(
    q: tuple[Any, Any],
    kv: Pair,
    weights: Any,
    cu_seq_len_k_start: Any,
    cu_seq_len_k_end: Any,
    clean_logits: bool | int = True,
    max_seqlen_k: int = 0,
    logits_dtype: Any = None,
    schedule_meta: Any = None,
) -> Any:
    """`fp8_mqa_logits` of q[0], into `logits_dtype`, torch.float32 (also None) or torch.bfloat16. q: (tensor, None): scales of q are
    of FP4 and of Blackwell's kernels, for which it raises UnsupportedProblem."""
    plain, dtype = of_pair("fp8_fp4_mqa_logits", q), output_of(logits_dtype)
    bounds = cu_seq_len_k_start, cu_seq_len_k_end
    return _logits(plain, kv, weights, bounds, _longest(clean_logits, max_seqlen_k), dtype)


def of_pair(function: str, q: tuple[Any, Any]) -> Any:
    """The tensor of (tensor, None). Raises ArgumentError, and UnsupportedProblem for scales."""
    if not isinstance(q, tuple | list) or len(q) != 2:
        raise ArgumentError("q", type(q).__name__, "must be a pair (tensor, None)")
    if q[1] is not None:
        raise UnsupportedProblem(f"{function}: scales of q are read by Blackwell's kernels")
    return q[0]


def output_of(logits_dtype: Any) -> str:
    """By gemmgen's name. Raises ArgumentError."""
    names = {torch_dtype(t): t.name for t in OUTPUTS} | {None: F32.name}
    if logits_dtype not in names:
        allowed = "must be torch.float32 or torch.bfloat16"
        raise ArgumentError("logits_dtype", logits_dtype, allowed)
    return names[logits_dtype]


def room(rows: int, columns: int, dtype: str, device: Any) -> Any:
    """A tensor of so many rows and columns, and as many columns more as make a row's bytes a multiple of the peer's."""
    of = DTYPES[dtype]
    step = ROW_BYTES // of.bytes
    pitch = -(-columns // step) * step
    return torch().empty(rows, pitch, dtype=torch_dtype(of), device=device)


def _longest(clean: bool | int, longest: int) -> int:
    """max_seqlen_k, which may stand in the place of clean_logits. Raises ArgumentError."""
    if type(clean) is int and not longest:
        clean, longest = False, clean
    if not isinstance(clean, bool):
        raise ArgumentError("clean_logits", clean, "must be True or False, or max_seqlen_k alone")
    if type(longest) is not int or not 0 <= longest <= MOST_SIDE:
        raise ArgumentError("max_seqlen_k", longest, f"must be an integer from 0 to {MOST_SIDE}")
    if clean and longest:
        allowed = "must be False with max_seqlen_k: rows end with their windows"
        raise ArgumentError("clean_logits", clean, allowed)
    return longest


def _logits(q: Any, kv: Pair, weights: Any, bounds: Pair, longest: int, dtype: str) -> Any:
    keys, scales = pair("kv", kv)
    for name, t in (("q", q), ("weights", weights)):
        require_tensor(name, t)
    with IN_LOGITS:
        rows, columns = (x.shape[0] if x.dim() else 0 for x in (q, keys))
        columns = longest or columns
        out = room(rows, columns + BEYOND * (not longest), dtype, q.device)[..., :columns]
        given = (q, keys, scales, weights.contiguous(), *bounds)
        return ops.fp8_mqa_logits(*given, out, out_dtype=dtype, columns=longest or None)
