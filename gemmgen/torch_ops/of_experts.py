"""How operators around the GEMMs of experts are registered: routes, copies, layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError
from ..runtime.torch_tensors import torch
from .dtensor import DISTRIBUTED
from .registration import tags


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
