"""Operators around the GEMMs of experts, routes, copies, layers: how they are registered, and all that a layer launches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ..errors import ArgumentError
from ..ops.mixture_calls import Calls
from ..runtime.torch_tensors import torch
from .dtensor import DISTRIBUTED
from .registration import NAMESPACE, tags


@cache
def calls() -> Calls:
    """What a layer of experts launches, as operators. They must be registered."""
    ops = getattr(torch().ops, NAMESPACE)
    return Calls(
        route=ops.route,
        quantise_rows=ops.quantise_rows,
        spread=ops.spread,
        plain=ops.grouped_gemm,
        blocks=ops.fp8_block_grouped_gemm,
        quantised=ops.fp8_block_grouped_gemm.quantised,
        by_row=ops.fp8_grouped_gemm,
        integers=ops.int8_grouped_gemm,
        coded=ops.w4a16_grouped_gemm,
        coded_by_row=ops.w4a8_grouped_gemm,
        coded_by_block=ops.w4a8_block_grouped_gemm,
        octets=ops.w8a16_grouped_gemm,
    )


def register(
    library: Any, schema: str, run: Callable[..., Any], fake: Callable[..., Any], tensor: str
) -> None:
    """In `library`: `run` wherever the tensors are. DTensors are refused, by the name of the argument `tensor`: slots and
    experts are of one rank."""
    name = schema.partition("(")[0]
    library.define(schema, tags=tags())
    library.impl(name, run, "CompositeExplicitAutograd")
    whole = f"{library.ns}::{name}"
    torch().library.register_fake(whole, fake, lib=library)

    def refuse(*call: Any) -> Any:
        allowed = f"must be of this rank's own tokens: {tensor}.to_local()"
        raise ArgumentError(tensor, "a DTensor", allowed)

    if DISTRIBUTED is not None:
        rule = torch().library.register_torch_dispatch
        rule(whole, DISTRIBUTED.DTensor, refuse, lib=library)
