"""Linear layers with gradients, made of the operators: y = x @ weight^T + bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError
from ..runtime.torch_tensors import torch
from .dtensor import scale_layout
from .registration import NAMESPACE, register

register()
torch_ = torch()  # a constant to a compiler, which would trace the function's imports
gemmgen = getattr(torch_.ops, NAMESPACE)

HALVES = (torch_.bfloat16, torch_.float16)
ROW = 16  # bytes that a row of each operand is a multiple of


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`y = x @ weight^T + bias`, and its gradients.

    x: bfloat16 or float16 [..., K]; weight: the same dtype [N, K]; N and K multiples of 8; bias: None, or [N] of
    that dtype or float32. y: [..., N] of x's dtype. Inside `torch.autocast` x and weight, which may be float32 too, are first cast
    to its dtype; so are those of `fp8_linear`, to bfloat16.
    Numerics: forward, dgrad (`dy @ weight`) and wgrad (`dy^T @ x`) each are one GEMM with FP32 accumulation, rounded
    once to the dtype of what they are the gradient of; the bias is added in FP32 before y is rounded, its gradient
    summed in FP32. Saved for backward are x and weight; what is not contiguous is copied. There is
    no second derivative. Raises ArgumentError.
    """
    x, weight = as_asked(x, weight)
    check(x, weight, bias, HALVES, element=2)
    y = _Linear.apply(_rows(x), weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


def fp8_linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`linear` whose three GEMMs multiply FP8 E4M3 with FP32 scales, promoted to FP32 every 128 of K.

    x: bfloat16 [..., K]; weight: bfloat16 [N, K]; N and K multiples of 16; bias: None, or [N], bfloat16 or float32.
    y: bfloat16 [..., N].
    Numerics, with a scale amax / 448 per so many rows x columns, along what a GEMM sums:
    forward x 1 x 128 along K, weight 128 x 128; dgrad dy 1 x 128 along N, and the forward pass's FP8 weight,
    turned; wgrad dy^T and x^T, each 1 x 128 along the tokens, quantised from bfloat16 dy and x and not from the
    forward pass's FP8 x. Sums, biases and roundings of the results are as in `linear`; tokens are filled up
    with zeros to a multiple of 16 in wgrad, which adds nothing to a sum. Saved for backward are x in bfloat16 and
    the FP8 weight with its scales. Where an infinity or a NaN shares a scale, results are NaN. There is no second
    derivative. Raises ArgumentError.
    """
    x, weight = as_asked(x, weight, HALVES[0])
    check(x, weight, bias, HALVES[:1], element=1)
    y = _Fp8Linear.apply(_rows(x), weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


def as_asked(x: Any, weight: Any, dtype: Any = None) -> tuple[Any, Any]:
    """Inside `torch.autocast` both in `dtype`, None for that of autocast; else as they are."""
    if not torch_.is_autocast_enabled(x.device.type):
        return x, weight
    dtype = dtype or torch_.get_autocast_dtype(x.device.type)
    return _narrow(x, dtype), _narrow(weight, dtype)


def _narrow(x: Any, dtype: Any) -> Any:
    return x.to(dtype) if x.dtype in (*HALVES, torch_.float32) else x


class _Linear(torch_.autograd.Function):  # type: ignore[misc, name-defined]
    """x [M, K], weight [N, K], bias [N] or None."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        weight = weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return gemmgen.gemm(x, weight, **bias_of(bias))

    @staticmethod
    @torch_.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Any) -> tuple[Any, Any, Any]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        dy = dy.contiguous()
        dx = gemmgen.gemm(dy, weight, layout="nn") if of_x else None
        dw = weight_gradient(_wgrad, dy, x) if of_weight else None
        return dx, dw, bias_gradient(dy, ctx.bias_dtype) if of_bias else None


class _Fp8Linear(torch_.autograd.Function):  # type: ignore[misc, name-defined]
    """x [M, K], weight [N, K], bias [N] or None."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        q, scale = gemmgen.quantise_blocks(weight)
        ctx.save_for_backward(x, q, scale)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return block_gemm(x, q, scale, **bias_of(bias))

    @staticmethod
    @torch_.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Any) -> tuple[Any, Any, Any]:
        x, q, scale = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        dx = block_gemm(dy, q.mT.contiguous(), scale.mT) if of_x else None
        dw = weight_gradient(fp8_wgrad, dy, x) if of_weight else None
        return dx, dw, bias_gradient(dy, ctx.bias_dtype) if of_bias else None


def block_gemm(x: Any, q: Any, scale: Any, **epilogue: Any) -> Any:
    """x in bfloat16, quantised here, times what is already FP8."""
    rows, scale_x = gemmgen.quantise_rows(x)
    layout = scale_layout(scale_x)
    return gemmgen.fp8_block_gemm(rows, scale_x, q, scale, scale_a_layout=layout, **epilogue)


def weight_gradient(multiply: Callable[[Any, Any], Any], dy: Any, x: Any) -> Any:
    """[N, K] of dy [M, N] and x [M, K]. A GEMM has a K of 1 at least; the gradient of no tokens is 0."""
    return multiply(dy, x) if len(dy) else dy.new_zeros(dy.shape[1], x.shape[1])


def _wgrad(dy: Any, x: Any) -> Any:
    return gemmgen.gemm(dy, x, layout="tn")


def fp8_wgrad(dy: Any, x: Any) -> Any:
    operands = (*_by_tokens(dy), *_by_tokens(x))
    layout = scale_layout(operands[1])
    return gemmgen.fp8_wgrad_gemm(*operands, scale_layout=layout, out_dtype="bf16")


def _by_tokens(x: Any) -> tuple[Any, Any]:
    """FP8 [columns, M] of x [M, columns], M filled up, with a scale per column and 128 tokens."""
    filled = torch_.nn.functional.pad(x.mT, (0, -x.shape[0] % ROW))
    q, scale = gemmgen.quantise_rows(filled)
    return q, scale


def bias_of(bias: Any) -> dict[str, Any]:
    return {} if bias is None else {"epilogue": "bias", "bias": bias.float().contiguous()}


def bias_gradient(dy: Any, dtype: Any) -> Any:
    return dy.sum(0, dtype=torch_.float32).to(dtype)


def _rows(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1]).contiguous()


def check(x: Any, weight: Any, bias: Any, dtypes: tuple[Any, ...], element: int) -> None:
    """`element`: bytes of what the GEMMs read, whose rows are multiples of 16 bytes both ways round."""
    _check_dtype("x", x, dtypes)
    _check_dtype("weight", weight, (x.dtype,))
    step = ROW // element
    if weight.dim() != 2 or any(side % step or not side for side in weight.shape):
        allowed = f"must be [N, K], multiples of {step}"
        raise ArgumentError("weight shape", tuple(weight.shape), allowed)
    if not x.dim() or x.shape[-1] != weight.shape[1]:
        raise ArgumentError("x shape", tuple(x.shape), f"must be [..., {weight.shape[1]}]")
    if bias is not None:
        _check_dtype("bias", bias, (x.dtype, torch_.float32))
        if tuple(bias.shape) != (weight.shape[0],):
            raise ArgumentError("bias shape", tuple(bias.shape), f"must be [{weight.shape[0]}]")


def _check_dtype(name: str, x: Any, dtypes: tuple[Any, ...]) -> None:
    """torch's dtypes, which a compiler can follow."""
    if x.dtype not in dtypes:
        allowed = f"must be {' or '.join(map(str, dtypes))}"
        raise ArgumentError(f"{name} dtype", x.dtype, allowed)
