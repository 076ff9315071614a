"""`gemmgen.ops.moe` in torch's dispatcher."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..errors import ArgumentError
from ..ops.mixture import Experts, check, moe
from ..runtime.torch_tensors import torch
from .dtensor import DISTRIBUTED
from .registration import tags

NAME = "moe"
SCHEMA = (
    f"{NAME}(Tensor x, Tensor w1, Tensor w2, Tensor chosen, Tensor weights, *, Tensor? scale_w1=None, "
    "Tensor? scale_w2=None, Tensor? add=None, str order='alternating', str epilogue='swiglu', "
    "int? experts=None, int first=0) -> Tensor"
)


@cache
def register_moe(library: Any) -> None:
    """In `library`. DTensors are refused: a layer is of one rank's tokens and experts."""
    library.define(SCHEMA, tags=tags())
    library.impl(NAME, moe, "CompositeExplicitAutograd")
    name = f"{library.ns}::{NAME}"
    torch().library.register_fake(name, _fake, lib=library)
    if DISTRIBUTED is not None:
        refuse = torch().library.register_torch_dispatch
        refuse(name, DISTRIBUTED.DTensor, _refuse, lib=library)


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


def _refuse(*call: Any) -> Any:
    raise ArgumentError("x", "a DTensor", "must be of this rank's own tokens: x.to_local()")
