"""What a layer of experts refuses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..activations import GATES
from ..errors import ArgumentError
from ..ir.counts import INT_LIMIT
from ..ir.dtypes import BF16, E4M3, F16, F32, FLOATS
from ..routing import MOST_EXPERTS as MOST_EXPERTS
from ..runtime.torch_tensors import dtype_of
from . import mixture_by_row, mixture_packed, routing
from .calls import SCALE_BLOCK
from .mixture_weights import Experts
from .tensors import check_matrix, check_number, check_shape, check_together

COPIED = 16  # bytes: what the copy engine wants addresses and strides to be multiples of
ORDERS = ("alternating", "halves")  # of w1's rows


def check(
    w: Experts, x: Any, chosen: Any, weights: Any, add: Any, experts: int | None, first: int
) -> int:
    """Of the arguments of `moe`, `experts` as a number. Raises ArgumentError."""
    _check_pairs(w)
    mixture_packed.check_said(w.packed, w.activations)
    given = {"x": x, "w1": w.w1, "w2": w.w2, "chosen": chosen, "weights": weights}
    given |= {name: t for name, t in (*w.tensors.items(), ("add", add)) if t is not None}
    check_together(given)
    check_order(w.order, w.epilogue)
    check_matrix("x", x, "T, H")
    if w.packed is None:
        _check_weights(w, x)
    else:
        mixture_packed.check(w, x)
    _check_biases(w, x.shape[1])
    check_number("first", first, 0, INT_LIMIT - 1)
    held = int(w.w1.shape[0])  # a number for a compiler too: routes are of so many
    if experts is None:
        experts = first + held
    check_number("experts", experts, first + held, INT_LIMIT - 1)
    routing.check(chosen, experts, w.alignment, first, held)
    check_shape("chosen", chosen, (x.shape[0], chosen.shape[1]))
    check_shape("weights", weights, tuple(chosen.shape))
    dtype_of("weights", weights, FLOATS)
    if add is not None:
        dtype_of("add", add, (dtype_of("x", x, (BF16, F16)),))
        check_shape("add", add, tuple(x.shape))
    return experts


def _check_weights(w: Experts, x: Any) -> None:
    dtype_of("x", x, (BF16,))
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
    if w.by_row:
        mixture_by_row.check(w, dtype)
        return
    for name, scale, of in (("w1", w.scale_w1, w.w1), ("w2", w.scale_w2, w.w2)):
        if scale is not None:
            dtype_of(f"scale_{name}", scale, (F32,))
            blocks = (-(-n // SCALE_BLOCK) for n in of.shape[1:])
            check_shape(f"scale_{name}", scale, (count, *blocks))


def _check_pairs(w: Experts) -> None:
    """Raise ArgumentError where one has a scale or a bias, and the other none."""
    for of in ("scale", "bias"):
        pair = {f"{of}_{name}": getattr(w, f"{of}_{name}") for name in ("w1", "w2")}
        absent = [name for name, x in pair.items() if x is None]
        if len(absent) == 1:
            (there,) = pair.keys() - {*absent}
            raise ArgumentError(absent[0], None, f"must be given, as {there} is")


def _check_biases(w: Experts, hidden: int) -> None:
    for name, bias, rows in (("bias_w1", w.bias_w1, 2 * w.inner), ("bias_w2", w.bias_w2, hidden)):
        if bias is not None:
            dtype_of(name, bias, (F32,))
            check_shape(name, bias, (w.w1.shape[0], rows))


def check_order(order: Any, epilogue: Any, known: Iterable[str] = GATES) -> None:
    """Raise ArgumentError for an order of w1's rows that there is not, or an epilogue that is not `known`."""
    for name, said, of in (("order", order, ORDERS), ("epilogue", epilogue, (*known,))):
        if not isinstance(said, str) or said not in of:
            raise ArgumentError(name, said, f"must be one of {', '.join(of)}")


def check_places(w: Experts, addresses: bool = True) -> None:
    """Raise ArgumentError where the copy engine cannot read weights, or an epilogue scales. addresses: whether weights have theirs."""
    whole = {"bias_w1": w.bias_w1, "bias_w2": w.bias_w2}
    whole |= {} if w.by_block else {"scale_w1": w.scale_w1, "scale_w2": w.scale_w2}
    whole |= {} if w.packed is None else {"w1": w.w1, "w2": w.w2}
    for name, x in whole.items():
        if x is not None and not x.is_contiguous():
            raise ArgumentError(f"{name} strides", tuple(x.stride()), "must be contiguous")
    for name, x in (("w1", w.w1), ("w2", w.w2)):
        if x.stride(-1) != 1:
            raise ArgumentError(f"{name} last stride", x.stride(2), "must be 1")
        steps = [
            step * x.element_size()
            for n, step in zip(x.shape, x.stride()[:-1], strict=False)
            if n > 1
        ]
        if any(n % COPIED for n in (*steps, x.data_ptr() if addresses else 0)):
            allowed = f"must have an address and rows at multiples of {COPIED} bytes"
            raise ArgumentError(name, tuple(x.stride()), allowed)
