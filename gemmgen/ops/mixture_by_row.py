"""A layer of experts whose rows have one scale each, of tokens and of weights: FP8, or INT8.

The scales multiply sums, in the epilogues. So a row of what lies between the GEMMs has its scale only once it is whole:
the first GEMM gives it in 16 bits, and a launch of its own quantises it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..ir.dtypes import E4M3, F32, S8, DType
from ..problem import INT8_K
from ..runtime.torch_tensors import dtype_of
from .mixture_weights import Experts, halves_of
from .tensors import check_shape

if TYPE_CHECKING:
    from .mixture_calls import Calls

DTYPES = (E4M3, S8)


def quantised(calls: Calls, w: Experts, x: Any) -> tuple[Any, Any]:
    """x [M, K] in the dtype that weights are multiplied in, and float32 [M, 1]."""
    codes, scale = calls.quantise_rows(x, None, dtype=_multiplied_in(w).name)
    return codes, scale.unsqueeze(-1)


def multiplied(calls: Calls, w: Experts, a: list[Any], said: dict[str, Any]) -> Any:
    """bfloat16 [M, H]. a: rows, and their scales, float32 [M, 1]; emptied. said: of every GEMM."""
    gemm = calls.integers if _multiplied_in(w) == S8 else calls.by_row
    gemm = gemm if w.packed is None else calls.coded_by_row
    said, after = {"out_dtype": "bf16", **said}, w.after(a[0].shape[1])
    h = _hidden(gemm, w, a, said)
    codes, scale = quantised(calls, w, h)
    del h  # which nothing reads any more
    return gemm(codes, w.w2, scale_a=scale.squeeze(-1), **after, **said)


def _multiplied_in(w: Experts) -> DType:
    return w.form.to if w.form is not None else dtype_of("w1", w.w1, DTYPES)


def _hidden(gemm: Callable[..., Any], w: Experts, a: list[Any], said: dict[str, Any]) -> Any:
    """bfloat16 [M, I]. Empties a."""
    rows, scale = a
    a.clear()
    of_rows = {"scale_a": scale.squeeze(-1), **said}
    if w.order == "alternating":
        return gemm(rows, w.w1, **w.activation(), **of_rows)
    half = w.inner
    gate, up = (w.w1.narrow(1, start, half) for start in (0, half))
    (scale_gate, scale_up), (of_gate, of_up) = halves_of(w.scale_w1), w.halves()
    c = gemm(rows, gate, scale_b=scale_gate, **of_gate, **of_rows)
    return gemm(rows, up, scale_b=scale_up, c=c, **of_up, **of_rows)


def check(w: Experts, dtype: DType) -> None:
    """Raise ArgumentError unless both scales are of rows, and sums of INT8 are exact."""
    for name, of, scale in (("w1", w.w1, w.scale_w1), ("w2", w.w2, w.scale_w2)):
        dtype_of(f"scale_{name}", scale, (F32,))
        check_shape(f"scale_{name}", scale, tuple(of.shape[:2]))
        if dtype == S8 and of.shape[2] > INT8_K:
            allowed = f"must have at most {INT8_K} columns: INT32 may overflow"
            raise ArgumentError(f"{name} shape", tuple(of.shape), allowed)
