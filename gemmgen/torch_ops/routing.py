"""`gemmgen.ops.route` in torch's dispatcher: it returns (slots, copies, ends), and `rows` is copies.shape[0]."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..ops import routing
from ..runtime.torch_tensors import torch
from . import of_experts

SCHEMA = "route(Tensor chosen, int experts, *, int alignment=128, int first=0, int? local=None) -> (Tensor, Tensor, Tensor)"

Found = tuple[Any, Any, Any]


@cache
def register_route(library: Any) -> None:
    """In `library`."""
    of_experts.register(library, SCHEMA, _implementation, _fake, "chosen")


def _implementation(chosen: Any, experts: int, **given: Any) -> Found:
    found = routing.route(chosen, experts, **given)
    return found.slots, found.copies, found.ends


def _fake(
    chosen: Any, experts: int, alignment: int = 128, first: int = 0, local: int | None = None
) -> Found:
    """Of symbolic sizes too: how many rows those need is for the launch to see."""
    local = routing.check(chosen, experts, alignment, first, local)
    rows = routing.rows_of(chosen.shape[0] * chosen.shape[1], local, alignment)
    if isinstance(rows, int):
        routing.check_rows(chosen, rows)
    sides = (tuple(chosen.shape), (rows,), (local,))
    slots, copies, ends = (chosen.new_empty(x, dtype=torch().int32) for x in sides)
    return slots, copies, ends
