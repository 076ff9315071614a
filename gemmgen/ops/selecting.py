"""Which experts a router's logits choose, and with what weights: torch's operators alone, on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..combining import FLOATS
from ..errors import ArgumentError
from ..ir.dtypes import F32
from ..runtime.torch_tensors import dtype_of, torch
from .tensors import check_matrix, check_number, check_shape, check_together

SCORES = ("softmax", "sigmoid")
BEST_OF_GROUP = 2  # scores that make a group's, where experts are chosen by a bias
LEAST_SUM = 1e-20  # so that weights of scores that all vanish are 0


def select(
    logits: Any,
    top: int,
    *,
    score: str = "softmax",
    bias: Any = None,
    groups: int = 1,
    kept_groups: int = 1,
    renormalise: bool = True,
    scale: float = 1.0,
) -> tuple[Any, Any]:
    """(chosen int32 [T, top], weights float32 [T, top]): of each token the experts with the `top` largest scores, largest first.

    logits: float32, bfloat16 or float16 [T, E]. score: "softmax" over the experts, or "sigmoid" of each, in FP32. bias: float32 [E], added to scores
    to choose by, not to weigh with, as DeepSeek-V3 balances experts. groups: E is so many equal groups, of which the `kept_groups` largest have experts that may be
    chosen; a group is as large as its largest score, or with `bias` as its two largest together. renormalise: divide weights by their sum. scale: multiply
    them with it, after that.

    Of equal scores, and of equal groups, the first is taken: the result depends on a token's logits alone. Weights have gradients for the logits. The host never waits, and a CUDA
    graph may hold it, or a compiler of torch trace it. Raises ArgumentError.
    """
    how = How(
        top=top,
        score=score,
        bias=bias,
        groups=groups,
        kept_groups=kept_groups,
        renormalise=renormalise,
        scale=scale,
    )
    check(logits, how)
    return selected(logits, how)


@dataclass(frozen=True, kw_only=True)
class How:
    """The arguments of `select`, but for the logits."""

    top: int
    score: str
    bias: Any
    groups: int
    kept_groups: int
    renormalise: bool
    scale: float


def selected(logits: Any, how: How) -> tuple[Any, Any]:
    """`select` of arguments that are checked."""
    wide = logits.float()
    scores = wide.softmax(-1) if how.score == "softmax" else wide.sigmoid()
    by = scores.detach() if how.bias is None else scores.detach() + how.bias
    if how.groups > 1:
        best = 1 if how.bias is None else BEST_OF_GROUP
        by = _of_kept_groups(by, how.groups, how.kept_groups, best)
    chosen = _largest(by, how.top)
    weights = scores.gather(-1, chosen)
    if how.renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + LEAST_SUM)
    return chosen.int(), weights if how.scale == 1 else weights * how.scale


def _largest(x: Any, count: int) -> Any:
    """Places of the largest of the last side, of equal ones the first. `torch.topk` says not which."""
    return x.sort(dim=-1, descending=True, stable=True).indices[..., :count]


def _of_kept_groups(by: Any, groups: int, kept: int, best: int) -> Any:
    """`by`, -inf where an expert's group is not kept."""
    grouped = by.unflatten(-1, (groups, -1))
    size = grouped.topk(min(best, grouped.shape[-1]), dim=-1).values.sum(-1)
    places = _largest(size, kept)
    keeps = torch().zeros_like(size, dtype=torch().bool).scatter_(-1, places, True)
    return grouped.masked_fill(~keeps.unsqueeze(-1), -math.inf).flatten(-2)


def check(logits: Any, how: How) -> None:
    """Raises ArgumentError."""
    bias = how.bias
    check_together({"logits": logits} | ({} if bias is None else {"bias": bias}))
    dtype_of("logits", logits, FLOATS)
    check_matrix("logits", logits, "T, E")
    experts = logits.shape[1]
    if not isinstance(how.score, str) or how.score not in SCORES:
        raise ArgumentError("score", how.score, f"must be one of {', '.join(SCORES)}")
    if bias is not None:
        dtype_of("bias", bias, (F32,))
        check_shape("bias", bias, (experts,))
    check_number("groups", how.groups, 1, max(1, experts))
    if experts % how.groups:
        raise ArgumentError("groups", how.groups, f"must divide {experts} experts")
    check_number("kept_groups", how.kept_groups, 1, how.groups)
    check_number("top", how.top, 1, experts // how.groups * how.kept_groups)
    if not isinstance(how.renormalise, bool):
        raise ArgumentError("renormalise", how.renormalise, "must be True or False")
    factor = how.scale
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not math.isfinite(factor):
        raise ArgumentError("scale", factor, "must be a finite number")
