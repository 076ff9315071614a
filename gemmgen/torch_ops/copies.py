"""The operators around the GEMMs of experts in torch's dispatcher: they say what becomes of a token's copies."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..ir.dtypes import F32
from ..ops import combining, spreading
from ..runtime.torch_tensors import torch
from . import of_experts
from .agreement import require
from .made import empty

COMBINE = "combine(Tensor y, Tensor slots, Tensor weights, Tensor? add=None) -> Tensor"
SPREAD = "spread(Tensor q, Tensor? scale, Tensor slots, SymInt rows) -> (Tensor, Tensor)"


@cache
def register_copies(library: Any) -> None:
    """In `library`, with gradients of `combine`."""
    of_experts.register(library, COMBINE, combine, fake_combine, "slots")
    of_experts.register(library, SPREAD, spreading.spread, fake_spread, "slots")
    gradients = torch().library.register_autograd
    gradients(f"{library.ns}::combine", _backward, setup_context=_setup, lib=library)


def combine(y: Any, slots: Any, weights: Any, add: Any = None) -> Any:
    """`gemmgen.ops.combine`. Raises as that, but for gradients."""
    return combining.combined(**combining.check(y, slots, weights, add))


def fake_combine(y: Any, slots: Any, weights: Any, add: Any = None) -> Any:
    """What `combine` returns, without computing it. Raises ArgumentError."""
    combining.check(y, slots, weights, add)
    return y.new_empty((slots.shape[0], y.shape[1]))


def fake_spread(q: Any, scale: Any, slots: Any, rows: Any) -> tuple[Any, Any]:
    """What `spread` returns, without computing it. Raises ArgumentError."""
    spreading.check(q, scale, slots)
    require(rows >= 0, "rows", rows, "must be an integer from 0 to 2**31 - 1")
    blocks = 0 if scale is None else scale.shape[1]
    return q.new_empty((rows, q.shape[1])), empty((blocks, rows), F32, q.device).mT


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:3])


@torch().autograd.function.once_differentiable  # type: ignore[untyped-decorator]
def _backward(ctx: Any, dout: Any) -> tuple[Any, ...]:
    """Sums in FP32, rounded once to the dtype of what they are the gradient of. A copy that there is not has none, nor
    has a row without a copy."""
    y, slots, weights = ctx.saved_tensors
    of_y, _, of_weights, *of_add = ctx.needs_input_grad  # torch leaves out what has its default
    dy = _of_copies(dout, y, slots, weights) if of_y else None
    dweights = weights_gradient(dout, y, slots, weights) if of_weights else None
    return dy, None, dweights, *(dout if of else None for of in of_add)


def _of_copies(dout: Any, y: Any, slots: Any, weights: Any) -> Any:
    """weights[t, j] * dout[t] to row slots[t, j]; of copies in the same row their sum."""
    dy = y.new_zeros((y.shape[0] + 1, y.shape[1]), dtype=torch().float32)  # the last is nobody's
    for at, named, j in _copies(y, slots):
        part = torch().where(named.unsqueeze(1), dout.float() * weights[:, j, None].float(), 0.0)
        dy.index_add_(0, torch().where(named, at, y.shape[0]), part)
    return dy[:-1].to(y.dtype)


def weights_gradient(dout: Any, y: Any, slots: Any, weights: Any) -> Any:
    """dout[t] . y[slots[t, j]], in FP32; 0 of a copy that there is not."""
    found = weights.new_zeros(weights.shape, dtype=torch().float32)
    if not y.shape[0]:
        return found.to(weights.dtype)
    for at, named, j in _copies(y, slots):
        products = dout.float() * y[at.clamp(0, y.shape[0] - 1)].float()
        found[:, j] = torch().where(named, products.sum(1), 0.0)
    return found.to(weights.dtype)


def _copies(y: Any, slots: Any) -> Any:
    """Of every j: the row of each token's copy, whether there is one, j."""
    for j in range(slots.shape[1]):
        at = slots[:, j].long()
        yield at, (at >= 0) & (at < y.shape[0]), j
