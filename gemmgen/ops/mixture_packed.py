"""A layer of experts of packed weights: what it refuses, and its GEMMs where rows are quantised with a scale for each 128 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..ir.dtypes import BF16, E4M3, F32
from ..ir.packed import ACTIVATIONS, COLUMNS, ROWS, Form, named_for
from ..problem_checks import BOX_BYTES
from ..routing import MOST_EXPERTS
from ..runtime.torch_tensors import dtype_of, torch
from .mixture_weights import Experts
from .tensors import check_shape

if TYPE_CHECKING:
    from .mixture_calls import Calls


def features(form: Form) -> int:
    """What those of a layer are multiples of: of the columns that share a scale, and of 16 bytes of its rows."""
    return max(form.k_step, BOX_BYTES // form.to.bytes)


def check_said(packed: Any, activations: Any) -> None:
    """Raise ArgumentError unless there are such weights, or none are said."""
    check_activations(activations)
    if packed is None:
        if activations is not None:
            allowed = "must be None: of weights that are not packed their dtype says it"
            raise ArgumentError("activations", activations, allowed)
        return
    known = named_for(activations)
    if not isinstance(packed, str) or packed not in known:
        raise ArgumentError("packed", packed, f"must be one of {', '.join(known)}, or None")


def check_activations(activations: Any) -> None:
    """Raise ArgumentError unless x is multiplied in that."""
    if activations not in ACTIVATIONS:
        allowed = f"must be {' or '.join(filter(None, ACTIVATIONS))}, or None for x's dtype"
        raise ArgumentError("activations", activations, allowed)


def multiplied(calls: Calls, w: Experts, a: list[Any], said: dict[str, Any]) -> Any:
    """bfloat16 [M, H]. a: rows, and their scales, float32 [M, ceil(H/128)], contiguous along M; emptied. said: of every GEMM."""
    gemm, after = calls.coded_by_block, w.after(a[0].shape[1])
    said = {"out_dtype": BF16.name, "scale_a_layout": "mn", **said}
    h = gemm(*a, w.w1, **w.activation(), **said)
    a.clear()
    codes, scale = calls.quantise_rows(h)
    del h  # which nothing reads any more
    return gemm(codes, scale, w.w2, **after, **said)


def check(w: Experts, x: Any) -> None:
    """Of weights and x [T, H]. Raises ArgumentError."""
    form, hidden = w.form, x.shape[1]
    assert form is not None
    if w.order != "alternating":
        allowed = "must be alternating: rows take turns before they are packed (gemmgen.quant.alternating)"
        raise ArgumentError("order", w.order, allowed)
    dtype_of("x", x, (BF16 if form.to == E4M3 else form.to,))
    step = features(form)
    if not hidden or hidden % step:
        allowed = f"must be [T, a multiple of {step}], for {w.packed}"
        raise ArgumentError("x shape", tuple(x.shape), allowed)
    for name, blocks in (("w1", w.w1), ("w2", w.w2)):
        if blocks.dtype != torch().uint8:
            raise ArgumentError(f"{name} dtype", blocks.dtype, "must be torch.uint8")
    shape = tuple(w.w1.shape)
    across = -(-hidden // COLUMNS)
    if len(shape) != 4 or shape[2:] != (across, form.block_bytes) or not shape[1]:
        allowed = f"must be [E, 2 * I / {ROWS}, {across}, {form.block_bytes}], for {w.packed}"
        raise ArgumentError("w1 shape", shape, allowed)
    if not 1 <= shape[0] <= MOST_EXPERTS:
        raise ArgumentError("w1 shape", shape, f"must be of 1 to {MOST_EXPERTS} experts")
    if w.inner % step:
        allowed = f"must be of 2 * I rows, I = {w.inner} a multiple of {step}"
        raise ArgumentError("w1 shape", shape, allowed)
    wanted = shape[0], -(-hidden // ROWS), -(-w.inner // COLUMNS), form.block_bytes
    check_shape("w2", w.w2, wanted)
    _check_factors(w, form, hidden)


def _check_factors(w: Experts, form: Form, hidden: int) -> None:
    for name, scale, rows in (("w1", w.scale_w1, 2 * w.inner), ("w2", w.scale_w2, hidden)):
        if not form.factors:
            if scale is not None:
                allowed = f"must be None: {w.packed} has no factors"
                raise ArgumentError(f"scale_{name}", "given", allowed)
            continue
        if scale is None:
            allowed = f"must be given: factors of {w.packed}"
            raise ArgumentError(f"scale_{name}", None, allowed)
        dtype_of(f"scale_{name}", scale, (F32,))
        check_shape(f"scale_{name}", scale, (w.w1.shape[0], rows))
