"""`gemmgen.ops.moe` in torch's dispatcher, without gradients: `moe_train` has them."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..ops.mixture import moe
from ..ops.mixture_checks import check
from ..ops.mixture_weights import Experts
from . import of_experts

SCHEMA = (
    "moe(Tensor x, Tensor w1, Tensor w2, Tensor chosen, Tensor weights, *, Tensor? scale_w1=None, "
    "Tensor? scale_w2=None, Tensor? bias_w1=None, Tensor? bias_w2=None, Tensor? add=None, str order='alternating', str epilogue='swiglu', "
    "str? packed=None, str? activations=None, int? experts=None, int first=0) -> Tensor"
)


@cache
def register_moe(library: Any) -> None:
    """In `library`."""
    of_experts.register(library, SCHEMA, moe, _fake, "x")


def _fake(
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
    check(Experts(w1=w1, w2=w2, **given), x, chosen, weights, add, experts, first)
    return x.new_empty(x.shape)
