"""The operators of a process group in torch's dispatcher: definitions, implementations on any device, fakes, gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ..runtime.torch_tensors import torch
from .all_reduces import COLLECTIVES
from .collectives import Collective
from .dtensor import refuse_dtensors
from .fakes import fake
from .fusing import compute
from .gradients import register_gradients
from .operators import Overload
from .registration import tags


@cache
def register_collectives(library: Any) -> None:
    """In `library`, which holds the operators that they are made of. Nothing where torch was built without `torch.distributed`."""
    if not torch().distributed.is_available():
        return
    for op in COLLECTIVES:
        for overload in op.overloads:
            name = op.qualified(overload)
            library.define(op.schema(overload), tags=tags())
            library.impl(name, _implementation(op, overload), "CompositeExplicitAutograd")
            torch().library.register_fake(f"{library.ns}::{name}", fake(op, overload), lib=library)
    refuse_dtensors(library, COLLECTIVES)
    register_gradients(library)


def _implementation(op: Collective, overload: Overload) -> Callable[..., Any]:
    return lambda *args, **given: compute(op, overload, args, given)
