"""`gemmgen.ops.select` in torch's dispatcher, with gradients of logits: one launch, also where torch compiles."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from ..ops import selecting
from ..ops.selecting import LEAST_SUM
from ..runtime.torch_tensors import torch
from . import of_experts

SCHEMA = (
    "select(Tensor logits, int top, Tensor? bias=None, *, str score='softmax', int groups=1, "
    "int kept_groups=1, bool renormalise=True, float scale=1.0, int shared=0) -> (Tensor, Tensor)"
)
# What else there is to say, and what is said where nothing is.
HOW = {
    name: x.default
    for name, x in inspect.signature(selecting.select).parameters.items()
    if x.kind is x.KEYWORD_ONLY and name != "bias"
}


@cache
def register_select(library: Any) -> None:
    """In `library`, with gradients of logits."""
    of_experts.register(library, SCHEMA, _implementation, _fake, "logits")
    gradients = torch().library.register_autograd
    gradients(f"{library.ns}::select", _backward, setup_context=_setup, lib=library)


def _how(logits: Any, top: int, bias: Any, given: dict[str, Any]) -> selecting.How:
    """Of checked arguments. Raises ArgumentError."""
    how = selecting.How(top=top, bias=bias, **HOW | given)
    selecting.check(logits, how)
    return how


def _implementation(logits: Any, top: int, bias: Any = None, **given: Any) -> tuple[Any, Any]:
    how = _how(logits, top, bias, given)
    return selecting.selected(logits.detach(), how)


def _fake(logits: Any, top: int, bias: Any = None, **given: Any) -> tuple[Any, Any]:
    how = _how(logits, top, bias, given)
    shape = (logits.shape[0], how.top + how.shared)
    chosen = logits.new_empty(shape, dtype=torch().int32)
    return chosen, logits.new_empty(shape, dtype=torch().float32)


def _setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    logits, ctx.top, *_ = inputs
    ctx.how = HOW | keyword_only_inputs
    ctx.save_for_backward(logits, output[0])
    ctx.mark_non_differentiable(output[0])


@torch().autograd.function.once_differentiable  # type: ignore[untyped-decorator]
def _backward(ctx: Any, _: Any, dweights: Any) -> tuple[Any, ...]:
    """Of weights by logits, in FP32, rounded once; what all tokens have has none."""
    (logits, chosen), how = ctx.saved_tensors, ctx.how
    wide, at = logits.float(), chosen[:, : ctx.top].long()
    softmax = how["score"] == "softmax"
    scores = wide.softmax(-1) if softmax else wide.sigmoid()
    d = dweights[:, : ctx.top].float() * how["scale"]
    if how["renormalise"]:
        taken = scores.gather(-1, at)
        whole = taken.sum(-1, keepdim=True) + LEAST_SUM
        d = (d - (d * taken).sum(-1, keepdim=True) / whole) / whole
    of_scores = torch().zeros_like(scores).scatter(-1, at, d)
    if softmax:
        of_logits = scores * (of_scores - (of_scores * scores).sum(-1, keepdim=True))
    else:
        of_logits = of_scores * scores * (1 - scores)
    return of_logits.to(logits.dtype), *(None for _ in ctx.needs_input_grad[1:])
