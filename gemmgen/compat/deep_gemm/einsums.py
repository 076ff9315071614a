"""Einstein sums that are batched GEMMs, on permuted views, or the sum of such.

By heads K is added up in its own order at every shape, few rows too: who compares with another library's sums to the last
bit, as DeepGEMM's tests do, compares with sums in that order. Over the batch the order may follow the shape.
"""

from __future__ import annotations

from typing import Any

from ...errors import ArgumentError, UnsupportedProblem
from ...ir.dtypes import BF16
from ...ops import summed_gemm, whole_k
from ...runtime.torch_tensors import check_tensor, dtype_of, require_tensor
from ..scales import scale_layout
from .operands import IN_DENSE, IN_FP8, Pair, Recipe, check_added, only_blocks, output, pair, plus

BY_HEAD = {"bhr,hdr->bhd": "nt", "bhd,hdr->bhr": "nn"}
OVER_BATCH = "bmk,bnk->mn"


def einsum(expr: str, a: Any, b: Any, d: Any, c: Any = None, use_cublaslt: bool = False) -> None:
    """A GEMM of every head h, or the sum of the GEMMs of a batch, written to `d`, summed in FP32.

    expr: "bhr,hdr->bhd" or "bhd,hdr->bhr". a: bfloat16 [b, h, r] ([b, h, d]); b: bfloat16 [h, d, r]; d:
    bfloat16 or float32 [b, h, d] ([b, h, r]): contiguous along the last dimension, other strides multiples
    of 16 bytes, in any order. c: None or of D's shape and dtype, `d` itself or apart from it.
    Or "bmk,bnk->mn", a: [b, m, k], b: [b, n, k], d: [m, n], c: None or of D's shape and dtype: `ops.summed_gemm`, whose sums are
    rounded once. DeepGEMM's FP32 `d`, which must be `c`, is one such.
    use_cublaslt: False. Raises as `gemmgen.ops`.
    """
    if use_cublaslt:
        raise ArgumentError("use_cublaslt", use_cublaslt, "must be False: gemmgen calls no library")
    if expr == OVER_BATCH:
        _over_batch(a, b, d, c)
        return
    if expr not in BY_HEAD:
        raise UnsupportedProblem(_refusal("einsum", expr, (*BY_HEAD, OVER_BATCH)))
    dtype_of("a", a, (BF16,))
    with IN_DENSE:
        whole_k.batched_gemm(
            _by_head("a", a),
            b,
            _by_head("d", d),
            layout=BY_HEAD[expr],
            out_dtype=output(d).name,
            **_plus(c, d),
        )


def fp8_einsum(
    expr: str,
    a: Pair,
    b: Pair,
    d: Any,
    c: Any = None,
    recipe: Recipe = (1, 128, 128),
) -> None:
    """A GEMM of every head h, of FP8 operands, promoted to FP32 every 128 of r.

    expr: "bhr,hdr->bhd". a: float8_e4m3fn [b, h, r] and float32 scales [b, h, ceil(r/128)], of any strides,
    read as in `fp8_gemm_nt`; b: float8_e4m3fn [h, d, r] and float32 scales [h, ceil(d/128), ceil(r/128)];
    d, c: as in `einsum`. recipe: (1, 128, 128). Raises as `gemmgen.ops`.
    """
    only_blocks(recipe)
    if expr != "bhr,hdr->bhd":
        raise UnsupportedProblem(_refusal("fp8_einsum", expr, ("bhr,hdr->bhd",)))
    (x, sa), (y, sb) = pair("a", a), pair("b", b)
    with IN_FP8:
        scales = _by_head("scale_a", sa)
        whole_k.fp8_block_batched_gemm(
            _by_head("a", x),
            scales,
            y,
            sb,
            _by_head("d", d),
            scale_a_layout=scale_layout("a[1]", scales),
            out_dtype=output(d).name,
            **_plus(c, d),
        )


def _over_batch(a: Any, b: Any, d: Any, c: Any) -> None:
    """`d = c + sum of a[i] @ b[i]^T`, in one launch."""
    dtype_of("a", a, (BF16,))
    check_added(c, d)
    with IN_DENSE:
        summed_gemm(a, b, d, c=c, out_dtype=output(d).name)


def _by_head(name: str, t: Any) -> Any:
    """[b, h, x] as [h, b, x]: a view. Raises ArgumentError."""
    require_tensor(name, t)
    if t.dim() != 3:
        raise ArgumentError(f"{name} shape", tuple(t.shape), "must have three dimensions")
    return t.transpose(0, 1)


def _plus(c: Any, d: Any) -> dict[str, Any]:
    if c is None:
        return {}
    check_tensor("c", c, output(d), tuple(d.shape))
    more = plus(c, d)
    return more | {"c": _by_head("c", c)}


def _refusal(function: str, expr: str, offered: tuple[str, ...]) -> str:
    known = " or ".join(map(repr, offered))
    return f"{function}: expr={expr!r} is not computed here, only {known}"
