"""Linear layers of a process group, with gradients: rows that are divided are gathered before columns, sums are scattered after rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import BF16
from ..runtime.torch_tensors import dtype_of
from .collectives import all_gather_gemm, gemm_reduce_scatter
from .fusing import all_rows
from .linear import (
    HALVES,
    bias_gradient,
    bias_of,
    block_gemm,
    check,
    fp8_wgrad,
    gemmgen,
    torch_,
    weight_gradient,
)
from .operators import HALVES as TYPES


def gathered_linear(
    x: Any, weight: Any, bias: Any, group_name: str, dim: int = 0, *, fuse: bool | None = None
) -> Any:
    """`linear` of x of all ranks, one after the other along `dim`, with this rank's own columns.

    x: bfloat16 or float16 [..., K], the same shape on every rank; weight [N, K], bias None or [N]: this rank's. y: [..., N], `dim` times as
    long as there are ranks. dim: not the last. fuse: as of `all_gather_gemm`, which computes it. Rows are copied where `dim` is not the first of several. Raises ArgumentError.
    """
    check(x, weight, bias, HALVES, element=2)
    rows, sides = _rows(x, dim)
    y = all_gather_gemm(rows, weight.contiguous(), group_name, fuse=fuse, **bias_of(bias))
    return _whole(y, sides, dim)


def scattered_linear(
    x: Any, weight: Any, bias: Any, group_name: str, dim: int = 0, *, fuse: bool | None = None
) -> Any:
    """The sum over ranks of `linear` of their parts of K, of which each gets its part along `dim`, one after the other.

    x: bfloat16 or float16 [..., K], weight: [N, K], of this rank's own K; bias: None or [N], whole on every rank and added once; its gradient
    is of this rank's part of y. y: [..., N]. dim: not the last, a multiple of the ranks. Sums travel in x's dtype. Raises ArgumentError.
    """
    check(x, weight, bias, HALVES, element=2)
    _check_divides(x, dim, group_name)
    rows, sides = _rows(x, dim)
    wire = dtype_of("x", x, TYPES).name
    y = gemm_reduce_scatter(
        rows, weight.contiguous(), group_name, wire=wire, fuse=fuse, **bias_of(bias)
    )
    return _whole(y, sides, dim)


def fp8_gathered_linear(
    x: Any, weight: Any, bias: Any, group_name: str, dim: int = 0, *, fuse: bool | None = None
) -> Any:
    """`gathered_linear` whose GEMMs are those of `fp8_linear`: codes and scales of x travel. weight: bfloat16. In the backward pass the sums of x's gradient
    travel in bfloat16, and x, which wgrad reads, in bfloat16 again. Raises ArgumentError."""
    check(x, weight, bias, HALVES[:1], element=1)
    rows, sides = _rows(x, dim)
    y = _Gathered.apply(rows, weight, bias, group_name, fuse)
    return _whole(y, sides, dim)


def fp8_scattered_linear(
    x: Any, weight: Any, bias: Any, group_name: str, dim: int = 0, *, fuse: bool | None = None
) -> Any:
    """`scattered_linear` whose GEMMs are those of `fp8_linear`. weight: bfloat16. Sums travel in bfloat16, and so does the gradient of y, once for both
    gradients. Raises ArgumentError."""
    check(x, weight, bias, HALVES[:1], element=1)
    _check_divides(x, dim, group_name)
    rows, sides = _rows(x, dim)
    y = _Scattered.apply(rows, weight, bias, group_name, fuse)
    return _whole(y, sides, dim)


def frozen_gathered(
    x: Any, weight: Any, bias: Any, group_name: str, dim: int = 0, *, fuse: bool | None = None
) -> Any:
    """`fp8_gathered_linear` without gradients; weight: (float8_e4m3fn [N, K], its scales)."""
    rows, sides = _rows(x, dim)
    q, scale = weight
    y = _fp8_gathered(rows, q, scale, group_name, fuse, **bias_of(bias))
    return _whole(y, sides, dim)


def frozen_scattered(
    x: Any, weight: Any, bias: Any, group_name: str, dim: int = 0, *, fuse: bool | None = None
) -> Any:
    """`fp8_scattered_linear` without gradients; weight: (float8_e4m3fn [N, K], its scales)."""
    _check_divides(x, dim, group_name)
    rows, sides = _rows(x, dim)
    q, scale = weight
    y = _fp8_scattered(rows, q, scale, group_name, fuse, **bias_of(bias))
    return _whole(y, sides, dim)


class _Gathered(torch_.autograd.Function):  # type: ignore[misc]
    """x [M, K] of this rank, weight [N, K], bias [N] or None."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, group: str, fuse: Any) -> Any:
        return _forward(_fp8_gathered, ctx, x, weight, bias, group, fuse)

    @staticmethod
    @torch_.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        x, q, scale = ctx.saved_tensors
        of_x, of_weight, of_bias, *_ = ctx.needs_input_grad
        dy = dy.contiguous()
        # The collective is over before a launch that takes all SMs.
        dw = weight_gradient(fp8_wgrad, dy, all_rows(x, ctx.group)) if of_weight else None
        turned = q.mT.contiguous()
        dx = _fp8_scattered(dy, turned, scale.mT, ctx.group, ctx.fuse) if of_x else None
        return dx, dw, bias_gradient(dy, ctx.bias_dtype) if of_bias else None, None, None


class _Scattered(torch_.autograd.Function):  # type: ignore[misc]
    """x [ranks * M, K], weight [N, K] of this rank's K, bias [N] or None."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, group: str, fuse: Any) -> Any:
        return _forward(_fp8_scattered, ctx, x, weight, bias, group, fuse)

    @staticmethod
    @torch_.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        x, q, scale = ctx.saved_tensors
        of_x, of_weight, of_bias, *_ = ctx.needs_input_grad
        whole = all_rows(dy, ctx.group)
        dx = block_gemm(whole, q.mT.contiguous(), scale.mT) if of_x else None
        dw = weight_gradient(fp8_wgrad, whole, x) if of_weight else None
        return dx, dw, bias_gradient(dy, ctx.bias_dtype) if of_bias else None, None, None


def _forward(
    by: Callable[..., Any], ctx: Any, x: Any, weight: Any, bias: Any, group: str, fuse: Any
) -> Any:
    """Of either, `by` what multiplies; what the backward pass reads is kept."""
    q, scale = gemmgen.quantise_blocks(weight)
    ctx.save_for_backward(x, q, scale)
    ctx.group, ctx.fuse, ctx.bias_dtype = group, fuse, None if bias is None else bias.dtype
    return by(x, q, scale, group, fuse, **bias_of(bias))


def _fp8_gathered(x: Any, q: Any, scale: Any, group: str, fuse: Any, **epilogue: Any) -> Any:
    codes, scale_x = gemmgen.quantise_rows(x)
    said = {"scale_a_layout": "mn", "fuse": fuse}
    return gemmgen.fp8_block_all_gather_gemm(codes, scale_x, q, scale, group, **said, **epilogue)


def _fp8_scattered(x: Any, q: Any, scale: Any, group: str, fuse: Any, **epilogue: Any) -> Any:
    codes, scale_x = gemmgen.quantise_rows(x)
    said = {"scale_a_layout": "mn", "fuse": fuse, "wire": BF16.name}
    return gemmgen.fp8_block_gemm_reduce_scatter(
        codes, scale_x, q, scale, group, **said, **epilogue
    )


def _rows(x: Any, dim: int) -> tuple[Any, tuple[Any, ...]]:
    """[rows, K], those of one place along `dim` together, and all sides but these two."""
    at = dim % x.dim()
    if at == x.dim() - 1:
        raise ArgumentError("dim", dim, f"must not be the last of {x.dim()}")
    first = x.movedim(at, 0)
    return first.reshape(-1, x.shape[-1]).contiguous(), tuple(first.shape[1:-1])


def _whole(y: Any, sides: tuple[Any, ...], dim: int) -> Any:
    """What `_rows` made rows of, with y's columns."""
    found = y.view(y.shape[0] // max(1, math.prod(sides)), *sides, y.shape[-1])
    return found.movedim(0, dim % found.dim())


def _check_divides(x: Any, dim: int, group_name: str) -> None:
    # Which torch's compiler knows, unlike groups themselves.
    ranks = torch_.distributed.distributed_c10d._get_group_size_by_name(group_name)
    if x.shape[dim] % ranks:
        allowed = f"must be a multiple of {ranks}, the ranks"
        raise ArgumentError(f"side {dim} of x", x.shape[dim], allowed)
