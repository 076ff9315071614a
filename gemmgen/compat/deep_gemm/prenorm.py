"""Hyper-connections: a few columns of a product with FP32 weights, and beside them each row's sum of squares."""

from __future__ import annotations

from typing import Any

from ...errors import ArgumentError
from ...ir.dtypes import BF16, F32
from ...ops import paired, prenorm_gemm
from ...ops.names import ArgumentNames
from ...runtime.torch_tensors import check_tensor, dtype_of, require_tensor

IN_PRENORM = ArgumentNames(
    names={"weights": "b", "pairs": "b", "out": "d", "squares": "sqr_sum", "columns": "b rows"}
)
ROW = 8  # elements of BF16 at multiples of which a split of K may begin: 16 bytes


def tf32_hc_prenorm_gemm(
    a: Any, b: Any, d: Any, sqr_sum: Any, num_splits: int | None = None
) -> None:
    """`d = a @ b^T`, of b rounded to TF32, and `sqr_sum[m]`, the sum of squares of a's row m, both summed in FP32.

    a: bfloat16 [M, K], contiguous along K, row stride a multiple of 16 bytes. b: float32 [N, K], N a multiple of 4. d: float32 [M, N], contiguous along N;
    sqr_sum: float32 [M]. num_splits: None, or a number S: d is then [S, M, N] and sqr_sum [S, M], whose sums over S are meant: of an S-th of K each, where
    an S-th is a multiple of 8; else the first has all, and the others are zeros.
    b is written as pairs of BF16 on every call, exactly, in a launch before the product's: `gemmgen.ops.prenorm_gemm` takes pairs that are made once. The
    same call gives the same bits. Raises as `gemmgen.ops`.
    """
    with IN_PRENORM:
        require_tensor("a", a)
        dtype_of("a", a, (BF16,))
        rows, depth = check_tensor("a", a, BF16, (None, None), contiguous=True)
        (columns, _) = check_tensor("b", b, F32, (None, depth), a.device)
        lead = () if num_splits is None else (_splits(num_splits),)
        check_tensor("d", d, F32, (*lead, rows, columns), a.device, contiguous=True)
        check_tensor("sqr_sum", sqr_sum, F32, (*lead, rows), a.device)
        if not rows:
            return
        pairs = paired(b, squares=True, tf32=True)
        if num_splits is None:
            prenorm_gemm(a, pairs, d, sqr_sum)
        elif depth % (ROW * num_splits) == 0:
            prenorm_gemm(_split(a, num_splits), _split(pairs, num_splits), d, sqr_sum)
        else:
            prenorm_gemm(a, pairs, d[0], sqr_sum[0])
            d[1:].zero_()
            sqr_sum[1:].zero_()


def _splits(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ArgumentError("num_splits", number, "must be a positive integer, or None")
    return number


def _split(x: Any, number: int) -> Any:
    """[rows, K] as [number, rows, K / number]: a view."""
    rows, depth = x.shape
    return x.view(rows, number, depth // number).transpose(0, 1)
