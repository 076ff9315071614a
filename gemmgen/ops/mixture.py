"""A layer of experts in a few launches: from hidden states and what a router chose to hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..problem import Problem
from . import mixture_by_row, mixture_packed
from .combining import combine
from .grouped import fp8_block_grouped_gemm, grouped_gemm
from .grouped_scaled import fp8_grouped_gemm, int8_grouped_gemm
from .mixture_calls import Calls
from .mixture_checks import check, check_places
from .mixture_weights import Experts
from .quantise import quantise_rows
from .routing import route
from .spreading import spread
from .tensors import check_no_gradient
from .w4a8 import w4a8_grouped_gemm
from .w4a8_block import w4a8_block_grouped_gemm
from .w4a16 import w4a16_grouped_gemm
from .w8a16 import w8a16_grouped_gemm

# Rows of an expert in the mean, up to which the first GEMM takes tokens by index. Measured, it took 0.95 to 1.00 of the time with
# copies up to here, and 0.89 to 1.20 of it of more rows (docs/adr/0063-rows-by-index.md).
MOST_TAKEN = 64
GAPS = Problem.alignment  # of the rows where an expert's begin, where a caller sorts them


def moe(
    x: Any,
    w1: Any,
    w2: Any,
    chosen: Any,
    weights: Any,
    *,
    scale_w1: Any = None,
    scale_w2: Any = None,
    bias_w1: Any = None,
    bias_w2: Any = None,
    add: Any = None,
    order: str = "alternating",
    epilogue: str = "swiglu",
    packed: str | None = None,
    activations: str | None = None,
    experts: int | None = None,
    first: int = 0,
) -> Any:
    """x's dtype, [T, H]: of each token t the sum over j of weights[t, j] * expert chosen[t, j] of x[t], after add[t] if given.

    An expert e of x is f(x @ gate^T, x @ up^T) @ w2[e]^T, gate and up the rows of w1[e], f(g, u) = silu(g) * u.
    x: bfloat16 [T, H]. w1: [E, 2 * I, H]; w2: [E, H, I]; both bfloat16, or float8_e4m3fn with scale_w1: float32 [E,
    ceil(2 * I/128), ceil(H/128)], and scale_w2: [E, ceil(H/128), ceil(I/128)]: then x and what `epilogue` gives are quantised per
    row and 128 columns. Or both float8_e4m3fn or int8 with a scale for each row, scale_w1: float32 [E, 2 * I], and scale_w2: [E, H], both contiguous: then x and
    what `epilogue` gives, which is rounded to bfloat16 before, are quantised per row; INT8 has H and I of at most 131071. Weights are contiguous along their last side, other strides multiples of 16 bytes.
    order: of w1's rows: "alternating" between gate and up, one GEMM with an epilogue that pairs columns; or "halves", gate's, then up's, as checkpoints
    have them: a GEMM each, the second of which reads the first's result, rounded to bfloat16. Those need I to be a multiple of 128 where blocks have scales.
    packed: the name of what w1 and w2 are packed from (`gemmgen.quant.Packed.weights`): they are `blocks` then, uint8 [E, 2 * I / 64, ceil(H/128), bytes of a block] and [E, ceil(H/64), ceil(I/128), bytes], contiguous, of rows that alternate; I is a multiple of 32, I and H of the columns that share a scale, of 8 where those are a row's.
    scale_w1 and scale_w2 are their `factors` [E, 2 * I] and [E, H] where they have some, as weights of 8 bits have, else None. activations: None: x, add and the result are of the dtype that blocks are packed for, bfloat16 or float16; "e4m3": of blocks for that x and what `epilogue` gives are quantised per row, as above; "e4m3_128": per row and 128 columns, what `epilogue` gives rounded to bfloat16 before.
    epilogue: f: "swiglu"; "geglu" by erf, "geglu_tanh", "reglu"; or "swiglu_clamped", gpt-oss's, with alpha 1.702 and limit 7. bias_w1: float32 [E, 2 * I], in the order of
    w1's rows; bias_w2: float32 [E, H]; both or none, contiguous. They are added to what the products give, before f and before weights.
    chosen: int32 or int64 [T, top], ids of `experts` (None: of first + E), of which w1 and w2 have E, at most 512, from `first` on. A choice of others, and an id that
    is none, adds nothing. weights: float32, bfloat16 or float16 [T, top]. add: [T, H] of x's dtype.

    The sum is in FP32 in the order of j (`combine`), so a result depends neither on timing nor on the order of tokens, but for the choice of configs, which follows T
    (`gemmgen.ops.set_invariant`). Launches on torch's current stream: `route`, `quantise_rows` if tokens are quantised, `spread`, two or three grouped GEMMs, `combine`: seven at most. Where experts have
    few rows, the first GEMM reads tokens by index if blocks have scales, and `spread` copies scales alone. Where rows have one scale `quantise_rows`
    once more, and halves have a copy of scale_w1: nine. Of a bias they have one more. Shapes do not depend on what was
    chosen, the host never waits, and a CUDA graph may hold it; a compiler of torch takes `torch.ops.gemmgen.moe` instead. Raises as these, and ArgumentError where a gradient is asked for.
    """
    w = Experts(
        w1=w1,
        w2=w2,
        scale_w1=scale_w1,
        scale_w2=scale_w2,
        bias_w1=bias_w1,
        bias_w2=bias_w2,
        order=order,
        epilogue=epilogue,
        packed=packed,
        activations=activations,
    )
    experts = check(w, x, chosen, weights, add, experts, first)
    given = {"x": x, **w.tensors, "weights": weights, "add": add}
    check_no_gradient(given, "must not: gemmgen.torch_ops.moe_train has gradients")
    check_places(w)
    y, slots = results(CALLS, w, x, chosen, experts=experts, first=first)
    return combine(y, slots, weights, add=add)


def results(
    calls: Calls, w: Experts, x: Any, chosen: Any, *, experts: int, first: int = 0
) -> tuple[Any, Any]:
    """(y, slots) as `combine` reads them."""
    slots, copies, ends = calls.route(
        chosen, experts, alignment=w.alignment, first=first, local=w.w1.shape[0]
    )
    codes, scale = _quantised_tokens(calls, w, x)
    expected = expected_of(chosen.numel(), experts, w.w1.shape[0])
    taken: dict[str, Any] = {}
    if w.by_block and 0 not in chosen.shape and expected[0] <= MOST_TAKEN:
        taken = {"rows": copies, "top": chosen.shape[1]}
        a = [codes, calls.spread(codes.narrow(1, 0, 0), scale, slots, copies.shape[0])[1]]
    else:
        a = [*calls.spread(codes, scale, slots, copies.shape[0])]
    del codes, scale  # of which nothing is read any more, but by way of a
    return multiplied(calls, w, a, ends, *expected, taken, w.alignment), slots


def _quantised_tokens(calls: Calls, w: Experts, x: Any) -> tuple[Any, Any]:
    if w.by_row:
        return mixture_by_row.quantised(calls, w, x)
    return calls.quantise_rows(x) if w.by_block or w.coded_by_block else (x, None)


def expected_of(copies: int, experts: int, held: int) -> tuple[int, int]:
    """Rows of an expert that has any, and how many of the `held` ones have any, of so many copies to `experts`: in the mean, and as if each
    expert had one before one had two. Of one token that is so; of several, choices that are even leave it to 0.63 of that number, or more."""
    rows = max(1, -(-copies // experts))
    return rows, max(1, min(held, -(-copies * held // experts)))


def multiplied(
    calls: Calls,
    w: Experts,
    a: list[Any],
    ends: Any,
    expected_rows: int | None,
    expected_groups: int | None = None,
    taken: dict[str, Any] | None = None,
    alignment: int = GAPS,
) -> Any:
    """[M, H] of rows sorted by expert, bfloat16, or float16 as they are, of which those of an expert begin at a multiple of `alignment` and end
    at `ends`; others are not written.

    a: the rows, and their scales, contiguous along them, if they have any. Emptied, so that what nobody else holds is free before the second GEMM.
    expected_rows, expected_groups: of experts, for the choice of configs. taken: which of the rows they are, if those are not sorted.
    """
    said: dict[str, Any] = {"group_ends": ends, "alignment": alignment}
    said |= {"expected_rows": expected_rows, "expected_groups": expected_groups}
    if w.by_row:
        return mixture_by_row.multiplied(calls, w, a, said)
    if w.coded_by_block:
        return mixture_packed.multiplied(calls, w, a, said)
    after = w.after(a[0].shape[1])
    if w.by_block:
        said |= {"scale_a_layout": "mn"}
        h = _hidden(calls.blocks, calls.quantised, w, a, said | (taken or {}))
        return calls.blocks(*h, *w.second(), **after, **said)
    del a[1:]
    gemm = _of_16_bits(calls, w)
    h = _hidden(gemm, gemm, w, a, said)
    return gemm(h, *w.second(), **after, **said)


def _of_16_bits(calls: Calls, w: Experts) -> Callable[..., Any]:
    """The GEMM of rows as they are."""
    if w.form is None:
        return calls.plain
    return calls.octets if w.form.bits == 8 else calls.coded


def _hidden(
    gate: Callable[..., Any], last: Callable[..., Any], w: Experts, a: list[Any], said: Any
) -> Any:
    """What the second GEMM multiplies: `last` gives it, of halves from what `gate` does. Empties a."""
    if w.order == "halves":
        half, (of_gate, of_up) = w.inner, w.halves()
        c = gate(*a, *w.first(0, half), **of_gate, **said)
        h = last(*a, *w.first(half, half), c=c, **of_up, **said)
    else:
        h = last(*a, *w.first(), **w.activation(), **said)
    a.clear()
    return h


def _routed(*call: Any, **given: Any) -> tuple[Any, Any, Any]:
    found = route(*call, **given)
    return found.slots, found.copies, found.ends


def _quantised(*call: Any, **given: Any) -> Any:
    return fp8_block_grouped_gemm(*call, out_dtype="e4m3", **given)


CALLS = Calls(
    route=_routed,
    quantise_rows=quantise_rows,
    spread=spread,
    plain=grouped_gemm,
    blocks=fp8_block_grouped_gemm,
    quantised=_quantised,
    by_row=fp8_grouped_gemm,
    integers=int8_grouped_gemm,
    coded=w4a16_grouped_gemm,
    coded_by_row=w4a8_grouped_gemm,
    coded_by_block=w4a8_block_grouped_gemm,
    octets=w8a16_grouped_gemm,
)
