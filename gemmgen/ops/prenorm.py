"""A few columns of a product with FP32 weights, and beside them each row's sum of squares: what a normalisation before a projection reads."""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..config import Config
from ..errors import ArgumentError
from ..ir.dtypes import BF16, F32
from ..ir.squares import check_pairs
from ..problem import Problem
from ..runtime.torch_tensors import dtype_of, require_tensor
from .compute import compute
from .front import front
from .names import ArgumentNames

NAMED = ArgumentNames(names={"b": "pairs"})


@front
def prenorm_gemm(
    a: Any,
    pairs: Any,
    out: Any = None,
    squares: Any = None,
    *,
    config: Config | None = None,
) -> Any:
    """`out[m, n] = a[m] . (pairs[2n] + pairs[2n + 1])` and `squares[m] = a[m] . a[m]`, with FP32 accumulation, in one launch that reads a once.

    a: bfloat16 [M, K], or [G, M, K] of several. pairs: bfloat16 [2 (N + 1), K], or [G, 2 (N + 1), K]: `paired(weights, squares=True)` of float32 weights [N, K],
    N a multiple of 4; its last two rows must be zeros: what a's row times the last but one is would be added to the squares. Both contiguous along K,
    other strides multiples of 16 bytes, 16-byte aligned.
    out: float32 [M, N] ([G, M, N]), contiguous along N, row stride a multiple of 16 bytes. squares: float32 [M] ([G, M]), of any strides above 0, apart from out or a column behind its own. Allocated if None.
    config: None: chosen. The result is (out, squares). M = 0 returns at once. The same call gives the same bits; which order sums are in depends on the
    shape. Runs on torch's current stream; a CUDA graph may hold it. Raises as `fp8_block_gemm`.
    """
    require_tensor("a", a)
    dtype_of("a", a, (BF16,))
    p = Problem(
        family=recipes.DENSE,
        a=BF16,
        b=BF16,
        d=F32,
        epilogue="pair_sum",
        squares=True,
        grouping="batched" if a.dim() == 3 else Problem.grouping,
    )
    _check(a, pairs)
    with NAMED:
        return compute(p, config, a, pairs, out, {}, squares=squares)


def _check(a: Any, pairs: Any) -> None:
    """Raise ArgumentError unless both are of one product, or of several, and pairs have one of zeros behind fours."""
    require_tensor("pairs", pairs)
    if a.dim() != pairs.dim():
        name, x = max(("a", a), ("pairs", pairs), key=lambda named: named[1].dim())
        allowed = f"must have {min(a.dim(), pairs.dim())} dimensions, as the other has"
        raise ArgumentError(f"{name} shape", tuple(x.shape), allowed)
    check_pairs(pairs.shape[-2] if pairs.dim() > 1 else 0)
