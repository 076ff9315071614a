"""A layer of experts with gradients, made of the operators: what `gemmgen.ops.moe` computes, and its backward pass (docs/adr/0064-experts-that-train.md)."""

from __future__ import annotations

from typing import Any

from ..ops.mixture import expected_of
from .expert_products import (
    ALIGNMENT,
    Operand,
    Rows,
    blank,
    copied,
    depths_of,
    gaps_of,
    operand,
    spread,
    times,
    times_turned,
    weight_gradient,
    weights_of,
)
from .gates import derivative, gated
from .linear import gemmgen, torch_
from .moe_checks import Said, checked


def moe_train(
    x: Any,
    w1: Any,
    w2: Any,
    chosen: Any,
    weights: Any,
    add: Any = None,
    *,
    kind: str = "bf16",
    order: str = "alternating",
    epilogue: str = "swiglu",
    experts: int | None = None,
    first: int = 0,
    recompute: bool = False,
) -> Any:
    """`gemmgen.ops.moe` with gradients of x, w1, w2, weights and add: bfloat16 [T, H].

    x: bfloat16 [T, H]. w1: bfloat16 [E, 2 * I, H]; w2: bfloat16 [E, H, I]; H and I multiples of 8, in FP8 of 16. kind: "bf16", or "fp8": both weights are quantised by every call, 128 x
    128. chosen, weights, add, order, experts, first: as of `moe`. epilogue: "swiglu", "geglu", "geglu_tanh" or "reglu"; there are no biases. recompute: False: the results of the first GEMM are kept for the backward pass; True: nothing is but the arguments, the
    forward pass is `moe`, to the bit, and the backward pass multiplies once more; then FP8 of halves needs I to be a multiple of 128, as there.

    Numerics: GEMMs sum in FP32 and round once to bfloat16; what is between them (gate, derivative, weights) is computed in FP32 and rounded once. The gradient of
    weights[t, j] is the dot product in FP32 of expert chosen[t, j]'s hidden vector and its gradient, which is that of what the expert gave and y's gradient. Sums over
    a token's copies are `combine`'s. In FP8, with a scale amax / 448 each: forward x and hidden vectors 1 x 128, and weights; dgrad the gradients of y and of the first GEMM's results 1 x
    128, and the same codes of the weights, turned; wgrad both operands by column and 128 rows of an expert, quantised anew from bfloat16.
    No atomics: the same bits for the same arguments, whatever else runs, but for the choice of configs, which follows T (`gemmgen.ops.set_invariant`).

    Kept: x, w1, w2, weights and tables; without recompute also bfloat16 [R, 2 * I], R = `route`'s rows + 128. Shapes do not depend on what was chosen, the host never waits, a CUDA graph may hold both passes,
    and a compiler of torch traces them. There is no second derivative. What is not contiguous is copied. Raises ArgumentError.
    """
    said = Said(kind, order, epilogue, experts, first, recompute)
    said = checked(said, x, w1, w2, chosen, weights, add)
    return _Moe.apply(x.contiguous(), w1, w2, chosen, weights, add, *said)


class _Moe(torch_.autograd.Function):  # type: ignore[misc]
    """Arguments of `moe_train`; said: the fields of `Said`, which a compiler takes one by one."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, w1: Any, w2: Any, chosen: Any, weights: Any, add: Any, *said: Any
    ) -> Any:
        ctx.said = said
        how = Said(*said)
        if how.recompute:
            ctx.save_for_backward(x, w1, w2, weights, chosen)
            return _whole(x, w1, w2, chosen, weights, add, how)
        rows = _routed(chosen, w1.shape[0], how)
        both = _first(x, weights_of(w1, how.fp8), rows, how)
        ctx.save_for_backward(x, w1, w2, weights, both, rows.slots, rows.copies, rows.ends)
        h = operand(gated(both, how.order, how.epilogue), how.fp8)
        y = times(h, weights_of(w2, how.fp8), rows)
        return gemmgen.combine(y, rows.slots, weights, add)

    @staticmethod
    @torch_.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dout: Any) -> tuple[Any, ...]:
        of_x, of_w1, of_w2, _, of_weights, of_add, *_ = ctx.needs_input_grad
        how = Said(*ctx.said)
        x, w1, w2, weights, *kept = ctx.saved_tensors
        dx, dw1, dw2, dweights = _gradients(
            (x, w1, w2, weights), kept, dout.contiguous(), how, (of_x, of_w1, of_w2, of_weights)
        )
        rest = (None,) * len(ctx.said)
        return dx, dw1, dw2, None, dweights, dout if of_add else None, *rest


def _whole(x: Any, w1: Any, w2: Any, chosen: Any, weights: Any, add: Any, how: Said) -> Any:
    """`moe`."""
    first, second = weights_of(w1, how.fp8), weights_of(w2, how.fp8)
    scales = {"scale_w1": first[1], "scale_w2": second[1]} if how.fp8 else {}
    return gemmgen.moe(
        *(x, first[0], second[0], chosen, weights),
        **scales,
        add=add,
        order=how.order,
        epilogue=how.epilogue,
        experts=how.experts,
        first=how.first,
    )


def _routed(chosen: Any, held: int, how: Said) -> Rows:
    said = {"alignment": ALIGNMENT, "first": how.first, "local": held}
    slots, copies, ends = gemmgen.route(chosen, how.experts, **said)
    return _rows(slots, copies, ends, how)


def _rows(slots: Any, copies: Any, ends: Any, how: Said) -> Rows:
    expected = expected_of(slots.numel(), how.experts, ends.shape[0])
    gaps = gaps_of(ends, copies.shape[0])
    return Rows(slots=slots, copies=copies, ends=ends, gaps=gaps, expected=expected)


def _first(x: Any, w1: Operand, rows: Rows, how: Said) -> Any:
    """What the first GEMM gives, 0 between experts."""
    return blank(times(spread(x, rows, how.fp8), w1, rows), rows)


def _gradients(
    given: tuple[Any, ...],
    kept: list[Any],
    dout: Any,
    how: Said,
    of: tuple[bool, ...],
) -> tuple[Any, ...]:
    """Of x, w1, w2 and weights, those that are asked for."""
    if not any(of):
        return (None,) * len(of)
    (x, w1, w2, weights), (of_x, of_w1, of_w2, of_weights) = given, of
    first = weights_of(w1, how.fp8) if of_x or how.recompute else ()
    if how.recompute:
        rows = _routed(kept[0], w1.shape[0], how)
        both = _first(x, first, rows, how)
    else:
        both, *tables = kept
        slots, copies, ends = tables
        rows = _rows(slots, copies, ends, how)
    dy = copied(dout, rows) if of_w2 else None
    by_row = spread(dout, rows, how.fp8) if how.fp8 or dy is None else (dy,)
    dh = blank(times_turned(by_row, weights_of(w2, how.fp8), rows), rows)
    weigh = rows.of_copies(weights)
    dboth, h, per_row = derivative(both, dh, weigh, how.order, how.epilogue)
    depths = depths_of(rows.ends)
    dw2 = weight_gradient(dy, h, depths, how.fp8) if of_w2 else None
    dx = _of_tokens(dboth, first, rows, how) if of_x else None
    dw1 = weight_gradient(dboth, copied(x, rows), depths, how.fp8) if of_w1 else None
    dweights = rows.to_copies(per_row).to(weights.dtype) if of_weights else None
    return dx, dw1, dw2, dweights


def _of_tokens(dboth: Any, first: Operand, rows: Rows, how: Said) -> Any:
    """x's gradient: the sum of its copies', which have their weights already."""
    dx = times_turned(operand(dboth, how.fp8), first, rows)
    once = torch_.ones(rows.slots.shape, dtype=torch_.float32, device=dx.device)
    return gemmgen.combine(dx, rows.slots, once)
