"""Which experts a router's logits choose, and with what weights: one launch, or torch's operators, on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import ArgumentError
from ..ir.counts import INT_LIMIT
from ..ir.dtypes import F32, FLOATS
from ..runtime import loaded_cast
from ..runtime.torch_tensors import current_stream, dtype_of, torch
from ..selecting import LEAST_SUM as LEAST_SUM
from ..selecting import (
    MOST_CHOICES,
    MOST_EXPERTS,
    SCORES,
    Selection,
    per_lane,
    source,
)
from .casting import in_rows
from .quantise import generated
from .tensors import check_matrix, check_number, check_shape, check_together

loaded = partial(loaded_cast.loaded, source)  # of a kernel and a device
BEST_OF_GROUP = 2  # scores that make a group's, where experts are chosen by a bias


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
    shared: int = 0,
) -> tuple[Any, Any]:
    """(chosen int32 [T, top + shared], weights float32, as many): of each token the experts with the `top` largest scores, largest first.

    logits: float32, bfloat16 or float16 [T, E]. score: "softmax" over the experts, or "sigmoid" of each, in FP32. bias: float32 [E], added to scores
    to choose by, not to weigh with, as DeepSeek-V3 balances experts. groups: E is so many equal groups, of which the `kept_groups` largest have experts that may be
    chosen; a group is as large as its largest score, or with `bias` as its two largest together. renormalise: divide weights by their sum. scale: multiply
    them with it, after that. shared: behind them experts that every token has, with weight 1: E to E + shared - 1, as whose weights `moe` has those of shared experts of
    as many features behind those of E.

    Of equal scores, and of equal groups, the first is taken: the result depends on a token's logits alone. Weights have gradients for the logits. The host never waits, and a CUDA
    graph may hold it, or a compiler of torch trace it. Logits on CUDA of at most 512 experts, for 32 choices at most, of which no gradient is asked and which have no tangent, are one launch of a generated
    kernel on torch's current stream, after a copy if a token's are not contiguous; all others, and what a compiler of torch traces, take torch's operators, whose exponentials are their own. `torch.ops.gemmgen.select` is one launch there too. Raises ArgumentError; on a GPU CompileError, and
    RuntimeUnavailable without NVRTC or if it is not Hopper.
    """
    how = How(
        top=top,
        score=score,
        bias=bias,
        groups=groups,
        kept_groups=kept_groups,
        renormalise=renormalise,
        scale=scale,
        shared=shared,
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
    shared: int


def selected(logits: Any, how: How) -> tuple[Any, Any]:
    """`select` of arguments that are checked."""
    fits = logits.shape[1] <= MOST_EXPERTS and how.top + how.shared <= MOST_CHOICES
    wanted = torch().is_grad_enabled() and logits.requires_grad
    wanted = wanted or torch().autograd.forward_ad.unpack_dual(logits).tangent is not None
    return (launched if fits and not wanted and generated(logits) else by_torch)(logits, how)


def launched(logits: Any, how: How) -> tuple[Any, Any]:
    """By one launch of a generated kernel on torch's current stream. Raises ArgumentError for more tokens than a launch counts."""
    logits, pitch = in_rows(logits)
    (tokens, experts), choices = logits.shape, how.top + how.shared
    if tokens >= INT_LIMIT:
        allowed = f"must have at most {INT_LIMIT - 1} tokens"
        raise ArgumentError("logits shape", tuple(logits.shape), allowed)
    empty = partial(torch().empty, (tokens, choices), device=logits.device)
    chosen, weights = empty(dtype=torch().int32), empty(dtype=torch().float32)
    if not tokens:
        return chosen, weights
    kind = dtype_of("logits", logits, FLOATS)
    kernel = Selection(logits=kind, score=how.score, per_lane=per_lane(experts))
    bias = None if how.bias is None else how.bias.contiguous()
    at = {"logits": logits.data_ptr(), "chosen": chosen.data_ptr(), "weights": weights.data_ptr()}
    at |= {"bias": 0 if bias is None else bias.data_ptr()}
    sizes = {"pitch": pitch, "tokens": tokens, "experts": experts, "top": how.top}
    sizes |= {"shared": how.shared, "groups": how.groups, "kept": how.kept_groups}
    sizes |= {"best": _best(how), "renormalise": int(how.renormalise)}
    values = {**at, **sizes, "scale": float(how.scale)}
    stream = current_stream(logits.device)
    loaded(kernel, logits.device.index).launch(values, kernel.tiles(tokens), stream)
    return chosen, weights


def _best(how: How) -> int:
    """Scores that make a group's."""
    return 1 if how.bias is None else BEST_OF_GROUP


def by_torch(logits: Any, how: How) -> tuple[Any, Any]:
    """What `launched` returns, but for the last bits of weights, by torch's operators, wherever logits are."""
    wide = logits.float()
    scores = wide.softmax(-1) if how.score == "softmax" else wide.sigmoid()
    by = scores.detach() if how.bias is None else scores.detach() + how.bias
    if how.groups > 1:
        by = _of_kept_groups(by, how.groups, how.kept_groups, _best(how))
    chosen = _largest(by, how.top)
    weights = scores.gather(-1, chosen)
    if how.renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + LEAST_SUM)
    weights = weights if how.scale == 1 else weights * how.scale
    return _with_shared(chosen.int(), weights, logits.shape[1], how.shared)


def _with_shared(chosen: Any, weights: Any, experts: int, shared: int) -> tuple[Any, Any]:
    if not shared:
        return chosen, weights
    behind = torch().arange(experts, experts + shared, dtype=torch().int32, device=chosen.device)
    ids = behind.expand(chosen.shape[0], -1)
    ones = weights.new_ones(1).expand(chosen.shape[0], shared)
    return torch().cat((chosen, ids), 1), torch().cat((weights, ones), 1)


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
    check_number("shared", how.shared, 0, INT_LIMIT - 1 - experts)
    if not isinstance(how.renormalise, bool):
        raise ArgumentError("renormalise", how.renormalise, "must be True or False")
    factor = how.scale
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not math.isfinite(factor):
        raise ArgumentError("scale", factor, "must be a finite number")
