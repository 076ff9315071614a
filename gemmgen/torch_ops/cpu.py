"""The operators on the CPU, where a program asks for that: for its tests, in CI and on laptops, and for those who learn."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..ops import combining
from ..ops.mixture import results
from ..ops.mixture_checks import check
from ..ops.mixture_weights import Experts
from ..runtime.torch_tensors import torch
from . import logits, of_experts, on_cpu, paged_logits, prenorm, top_keys
from .operators import OPERATORS
from .registration import NAMESPACE, register

KEY = "CPU"
_library: Any = None  # holds what is registered


def compute_on_cpu(on: bool = True) -> None:
    """From now on, in the whole process, operators of tensors on the CPU are computed there by torch's own operators, with
    what is made of them: `linear`, `moe_train`, `gemmgen.nn`. With False they are refused again, as they are at first.

    Results, strides and errors are those of the GPU but for the order of sums, which are taken in float64: they lie in the same
    bounds around the exact result, and are not the same bits. Rows that a launch leaves untouched are 0 in a new
    tensor. What only a launch asks, addresses and strides at multiples of 16 bytes, is not checked; `config` is read and says nothing.
    It takes as long as float64 does: it is no fallback, and no tensor of a GPU ever comes here. Raises ArgumentError.
    """
    global _library
    if not isinstance(on, bool):
        raise ArgumentError("on", on, "must be true or false")
    if on and _library is None:
        register()
        _library = _registered()
    elif not on and _library is not None:
        _library._destroy()
        _library = None


def computes_on_cpu() -> bool:
    """What `compute_on_cpu` was last given, at first False."""
    return _library is not None


def _registered() -> Any:
    library = torch().library.Library(NAMESPACE, "IMPL")
    for op in OPERATORS:
        for overload in op.overloads if op.operands else ():
            run = on_cpu.implementation(op, overload)
            library.impl(op.qualified(overload), run, KEY)
    library.impl("moe", _moe, KEY)
    library.impl("fp8_mqa_logits", logits.on_cpu, KEY)
    library.impl("fp8_mqa_top_k", top_keys.on_cpu, KEY)
    library.impl("fp8_paged_mqa_top_k", top_keys.in_pages_on_cpu, KEY)
    library.impl("fp8_paged_mqa_logits", paged_logits.on_cpu, KEY)
    library.impl("prenorm_gemm", prenorm.on_cpu, KEY)
    return library


def _moe(
    x: Any,
    w1: Any,
    w2: Any,
    chosen: Any,
    weights: Any,
    *,
    add: Any = None,
    experts: int | None = None,
    first: int = 0,
    **given: Any,
) -> Any:
    """`gemmgen.ops.moe`, of operators."""
    w = Experts(w1=w1, w2=w2, **given)
    experts = check(w, x, chosen, weights, add, experts, first)
    y, slots = results(of_experts.calls(), w, x, chosen, experts=experts, first=first)
    return combining.combined(y, slots, weights, add)
