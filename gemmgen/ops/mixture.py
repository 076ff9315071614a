"""A layer of experts in a few launches: from hidden states and what a router chose to hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..combining import FLOATS
from ..errors import ArgumentError
from ..ir.counts import INT_LIMIT
from ..ir.dtypes import BF16, E4M3, F32
from ..routing import MOST_EXPERTS as MOST_EXPERTS
from ..runtime.torch_tensors import dtype_of
from . import mixture_by_row, routing
from .calls import SCALE_BLOCK
from .combining import combine
from .grouped import fp8_block_grouped_gemm, grouped_gemm
from .grouped_scaled import fp8_grouped_gemm, int8_grouped_gemm
from .mixture_by_row import GATED
from .mixture_calls import Calls as Calls
from .quantise import quantise_rows
from .routing import route
from .spreading import spread
from .tensors import check_matrix, check_no_gradient, check_number, check_shape, check_together

ALIGNMENT = 128  # of the rows where an expert's begin
COPIED = 16  # bytes: what the copy engine wants addresses and strides to be multiples of
# By the order of w1's rows: the epilogues that there are.
EPILOGUES = {"alternating": ("swiglu", "geglu", "reglu"), "halves": ("swiglu",)}
# Rows of an expert in the mean, up to which the first GEMM takes tokens by index. Measured, it took 0.95 to 1.00 of the time with
# copies up to here, and 0.89 to 1.20 of it of more rows (docs/adr/0063-rows-by-index.md).
MOST_TAKEN = 64


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Their weights, as `moe` takes them."""

    w1: Any
    w2: Any
    scale_w1: Any = None
    scale_w2: Any = None
    order: str = "alternating"
    epilogue: str = "swiglu"

    @property
    def scaled(self) -> bool:
        return self.scale_w1 is not None

    @property
    def by_row(self) -> bool:
        """Whether rows of weights have one scale each, not their blocks."""
        return self.scaled and len(self.scale_w1.shape) == 2

    def first(self, start: int = 0, rows: int | None = None) -> tuple[Any, ...]:
        """w1, or so many of its rows, with their scales if it has any."""
        if rows is None:
            return (self.w1, self.scale_w1) if self.scaled else (self.w1,)
        part = self.w1.narrow(1, start, rows)
        if not self.scaled:
            return (part,)
        blocks = start // SCALE_BLOCK, rows // SCALE_BLOCK
        return part, self.scale_w1.narrow(1, *blocks)

    def second(self) -> tuple[Any, ...]:
        return (self.w2, self.scale_w2) if self.scaled else (self.w2,)


def moe(
    x: Any,
    w1: Any,
    w2: Any,
    chosen: Any,
    weights: Any,
    *,
    scale_w1: Any = None,
    scale_w2: Any = None,
    add: Any = None,
    order: str = "alternating",
    epilogue: str = "swiglu",
    experts: int | None = None,
    first: int = 0,
) -> Any:
    """bfloat16 [T, H]: of each token t the sum over j of weights[t, j] * expert chosen[t, j] of x[t], after add[t] if given.

    An expert e of x is (silu(x @ gate^T) * (x @ up^T)) @ w2[e]^T, gate and up the rows of w1[e].
    x: bfloat16 [T, H]. w1: [E, 2 * I, H]; w2: [E, H, I]; both bfloat16, or float8_e4m3fn with scale_w1: float32 [E,
    ceil(2 * I/128), ceil(H/128)], and scale_w2: [E, ceil(H/128), ceil(I/128)]: then x and what `epilogue` gives are quantised per
    row and 128 columns. Or both float8_e4m3fn or int8 with a scale for each row, scale_w1: float32 [E, 2 * I], and scale_w2: [E, H], both contiguous: then x and
    what `epilogue` gives, which is rounded to bfloat16 before, are quantised per row; INT8 has H and I of at most 131071. Weights are contiguous along their last side, other strides multiples of 16 bytes.
    order: of w1's rows: "alternating" between gate and up, one GEMM with an epilogue that pairs columns; or "halves", gate's, then up's, as checkpoints
    have them: a GEMM each, the second of which reads the first's result, rounded to bfloat16. Those need I to be a multiple of 128 where blocks have scales.
    epilogue: "swiglu"; of alternating rows also "geglu" and "reglu".
    chosen: int32 or int64 [T, top], ids of `experts` (None: of first + E), of which w1 and w2 have E, at most 512, from `first` on. A choice of others, and an id that
    is none, adds nothing. weights: float32, bfloat16 or float16 [T, top]. add: bfloat16 [T, H].

    The sum is in FP32 in the order of j (`combine`), so a result depends neither on timing nor on the order of tokens, but for the choice of configs, which follows T
    (`gemmgen.ops.set_invariant`). Launches on torch's current stream: `route`, `quantise_rows` if there are scales, `spread`, two or three grouped GEMMs, `combine`: seven at most. Where experts have
    few rows, the first GEMM reads tokens by index if blocks have scales, and `spread` copies scales alone. With scales of rows `quantise_rows`
    once more, and halves have a copy of scale_w1: nine. Shapes do not depend on what was
    chosen, the host never waits, and a CUDA graph may hold it; a compiler of torch takes `torch.ops.gemmgen.moe` instead. Raises as these, and ArgumentError where a gradient is asked for.
    """
    w = Experts(w1=w1, w2=w2, scale_w1=scale_w1, scale_w2=scale_w2, order=order, epilogue=epilogue)
    experts = check(w, x, chosen, weights, add, experts, first)
    given = {"x": x, "w1": w1, "w2": w2, "weights": weights, "add": add}
    check_no_gradient(given, "must not: gemmgen.torch_ops.moe_train has gradients")
    check_places(w)
    y, slots = results(CALLS, w, x, chosen, experts=experts, first=first)
    return combine(y, slots, weights, add=add)


def results(
    calls: Calls, w: Experts, x: Any, chosen: Any, *, experts: int, first: int = 0
) -> tuple[Any, Any]:
    """(y, slots) as `combine` reads them."""
    slots, copies, ends = calls.route(
        chosen, experts, alignment=ALIGNMENT, first=first, local=w.w1.shape[0]
    )
    codes, scale = _quantised_tokens(calls, w, x)
    expected = expected_of(chosen.numel(), experts, w.w1.shape[0])
    taken: dict[str, Any] = {}
    blocks = w.scaled and not w.by_row
    if blocks and 0 not in chosen.shape and expected[0] <= MOST_TAKEN:
        taken = {"rows": copies, "top": chosen.shape[1]}
        a = [codes, calls.spread(codes.narrow(1, 0, 0), scale, slots, copies.shape[0])[1]]
    else:
        a = [*calls.spread(codes, scale, slots, copies.shape[0])]
    del codes, scale  # of which nothing is read any more, but by way of a
    return multiplied(calls, w, a, ends, *expected, taken), slots


def _quantised_tokens(calls: Calls, w: Experts, x: Any) -> tuple[Any, Any]:
    if w.by_row:
        return mixture_by_row.quantised(calls, w, x)
    return calls.quantise_rows(x) if w.scaled else (x, None)


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
) -> Any:
    """bfloat16 [M, H] of rows sorted by expert, of which those of an expert end at `ends`; others are not written.

    a: the rows, and their scales, contiguous along them, if they have any. Emptied, so that what nobody else holds is free before the second GEMM.
    expected_rows, expected_groups: of experts, for the choice of configs. taken: which of the rows they are, if those are not sorted.
    """
    said: dict[str, Any] = {"group_ends": ends, "alignment": ALIGNMENT}
    said |= {"expected_rows": expected_rows, "expected_groups": expected_groups}
    if not w.scaled:
        del a[1:]
        h = _hidden(calls.plain, calls.plain, w, a, said)
        return calls.plain(h, *w.second(), **said)
    if w.by_row:
        return mixture_by_row.multiplied(calls, w, a, said)
    said |= {"scale_a_layout": "mn"}
    h = _hidden(calls.blocks, calls.quantised, w, a, said | (taken or {}))
    return calls.blocks(*h, *w.second(), **said)


def _hidden(
    gate: Callable[..., Any], last: Callable[..., Any], w: Experts, a: list[Any], said: Any
) -> Any:
    """What the second GEMM multiplies: `last` gives it, of halves from what `gate` does. Empties a."""
    part: tuple[int, ...] = ()
    given: dict[str, Any] = {"epilogue": w.epilogue}
    if w.order == "halves":
        half = w.w1.shape[1] // 2
        part, given = (half, half), {"epilogue": GATED, "c": gate(*a, *w.first(0, half), **said)}
    h = last(*a, *w.first(*part), **given, **said)
    a.clear()
    return h


def check(
    w: Experts, x: Any, chosen: Any, weights: Any, add: Any, experts: int | None, first: int
) -> int:
    """Of the arguments of `moe`, `experts` as a number. Raises ArgumentError."""
    given = {"x": x, "w1": w.w1, "w2": w.w2, "chosen": chosen, "weights": weights}
    given |= {"scale_w1": w.scale_w1, "scale_w2": w.scale_w2} if w.scaled else {}
    check_together(given | ({} if add is None else {"add": add}))
    _check_weights(w, x)
    check_number("first", first, 0, INT_LIMIT - 1)
    held = int(w.w1.shape[0])  # a number for a compiler too: routes are of so many
    if experts is None:
        experts = first + held
    check_number("experts", experts, first + held, INT_LIMIT - 1)
    routing.check(chosen, experts, ALIGNMENT, first, held)
    check_shape("chosen", chosen, (x.shape[0], chosen.shape[1]))
    check_shape("weights", weights, tuple(chosen.shape))
    dtype_of("weights", weights, FLOATS)
    if add is not None:
        dtype_of("add", add, (BF16,))
        check_shape("add", add, tuple(x.shape))
    return experts


def _check_weights(w: Experts, x: Any) -> None:
    check_order(w.order, w.epilogue)
    dtype_of("x", x, (BF16,))
    check_matrix("x", x, "T, H")
    scaled = mixture_by_row.DTYPES if w.by_row else (E4M3,)
    dtype = dtype_of("w1", w.w1, scaled if w.scaled else (BF16,))
    dtype_of("w2", w.w2, (dtype,))
    hidden = x.shape[1]
    if not hidden or hidden * dtype.bytes % COPIED:
        allowed = f"must be [T, a multiple of {COPIED // dtype.bytes}]"
        raise ArgumentError("x shape", tuple(x.shape), allowed)
    shape = tuple(w.w1.shape)
    if len(shape) != 3 or shape[2] != hidden or shape[1] < 2 or shape[1] % 2:
        raise ArgumentError("w1 shape", shape, f"must be [E, 2 * I, {hidden}]")
    count, inner = shape[0], shape[1] // 2
    if not 1 <= count <= MOST_EXPERTS:
        raise ArgumentError("w1 shape", shape, f"must be of 1 to {MOST_EXPERTS} experts")
    if w.scaled and not w.by_row and w.order == "halves" and inner % SCALE_BLOCK:
        allowed = f"must be [E, 2 * I, H], I a multiple of {SCALE_BLOCK}: gate and up share no block of scales"
        raise ArgumentError("w1 shape", shape, allowed)
    check_shape("w2", w.w2, (count, hidden, inner))
    if (w.scale_w2 is None) is w.scaled:
        name = "scale_w2" if w.scale_w2 is None else "scale_w1"
        raise ArgumentError(name, None, "must be given: both weights have scales, or none")
    if w.by_row:
        mixture_by_row.check(w, dtype)
        return
    for name, scale, of in (("w1", w.scale_w1, w.w1), ("w2", w.scale_w2, w.w2)):
        if scale is not None:
            dtype_of(f"scale_{name}", scale, (F32,))
            blocks = (-(-n // SCALE_BLOCK) for n in of.shape[1:])
            check_shape(f"scale_{name}", scale, (count, *blocks))


def check_order(order: Any, epilogue: Any) -> None:
    if not isinstance(order, str) or order not in EPILOGUES:
        raise ArgumentError("order", order, f"must be one of {', '.join(EPILOGUES)}")
    if epilogue not in EPILOGUES[order]:
        allowed = f"must be one of {', '.join(EPILOGUES[order])} for order {order!r}"
        raise ArgumentError("epilogue", epilogue, allowed)


def check_places(w: Experts) -> None:
    """Raise ArgumentError where the copy engine cannot read weights, or an epilogue scales."""
    if w.by_row:
        mixture_by_row.check_places(w)
    for name, x in (("w1", w.w1), ("w2", w.w2)):
        if x.stride(2) != 1:
            raise ArgumentError(f"{name} last stride", x.stride(2), "must be 1")
        steps = [
            step * x.element_size()
            for n, step in zip(x.shape, x.stride()[:2], strict=False)
            if n > 1
        ]
        if any(n % COPIED for n in (*steps, x.data_ptr())):
            allowed = f"must have an address and rows at multiples of {COPIED} bytes"
            raise ArgumentError(name, tuple(x.stride()), allowed)


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
)
