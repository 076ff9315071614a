"""What `moe_train` refuses, with torch's dtypes, which a compiler can follow."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import ArgumentError
from ..ir.counts import INT_LIMIT
from ..ops import SCALE_BLOCK
from ..ops.mixture_checks import MOST_EXPERTS, check_order
from ..ops.tensors import check_number, check_shape
from .gates import GATES
from .linear import ROW, torch_

FP8 = "fp8"
KINDS = {"bf16": 2, FP8: 1}  # bytes of what the GEMMs read
BF16 = torch_.bfloat16
WEIGHTS = (torch_.float32, BF16, torch_.float16)
IDS = (torch_.int32, torch_.int64)


class Said(NamedTuple):
    """The arguments of `moe_train` that are no tensors; experts: a number, once it is checked."""

    kind: str
    order: str
    epilogue: str
    experts: Any
    first: int
    recompute: bool

    @property
    def fp8(self) -> bool:
        return self.kind == FP8


def checked(said: Said, x: Any, w1: Any, w2: Any, chosen: Any, weights: Any, add: Any) -> Said:
    """`said` with a number of experts. Raises ArgumentError."""
    _check_said(said)
    _check_weights(x, w1, w2, said)
    check_choices(x, chosen, weights, add)
    least = said.first + int(w1.shape[0])
    whole = least if said.experts is None else said.experts
    check_number("experts", whole, least, INT_LIMIT - 1)
    return said._replace(experts=whole)


def _check_said(said: Said) -> None:
    if not isinstance(said.kind, str) or said.kind not in KINDS:
        raise ArgumentError("kind", said.kind, f"must be one of {', '.join(KINDS)}")
    check_order(said.order, said.epilogue, GATES)
    check_number("first", said.first, 0, INT_LIMIT - 1)
    if not isinstance(said.recompute, bool):
        raise ArgumentError("recompute", said.recompute, "must be True or False")


def _check_weights(x: Any, w1: Any, w2: Any, said: Said) -> None:
    for name, t in (("x", x), ("w1", w1), ("w2", w2)):
        if t.dtype != BF16:
            raise ArgumentError(f"{name} dtype", t.dtype, f"must be {BF16}")
    step = ROW // KINDS[said.kind]
    if x.dim() != 2 or not x.shape[1] or x.shape[1] % step:
        raise ArgumentError("x shape", tuple(x.shape), f"must be [T, a multiple of {step}]")
    shape, hidden = tuple(w1.shape), x.shape[1]
    blocks = said.fp8 and said.order == "halves" and said.recompute
    inner = SCALE_BLOCK if blocks else step  # gate and up share no block of scales that `moe` reads
    if len(shape) != 3 or shape[2] != hidden or not shape[1] or shape[1] % (2 * inner):
        allowed = f"must be [E, 2 * a multiple of {inner}, {hidden}]"
        raise ArgumentError("w1 shape", shape, allowed)
    if not 1 <= shape[0] <= MOST_EXPERTS:
        raise ArgumentError("w1 shape", shape, f"must be of 1 to {MOST_EXPERTS} experts")
    check_shape("w2", w2, (shape[0], hidden, shape[1] // 2))


def check_choices(x: Any, chosen: Any, weights: Any, add: Any) -> None:
    """Raise ArgumentError unless they are a router's of tokens x [T, H], and what is added is like x."""
    if chosen.dtype not in IDS:
        raise ArgumentError("chosen dtype", chosen.dtype, f"must be {' or '.join(map(str, IDS))}")
    if chosen.dim() != 2 or chosen.shape[0] != x.shape[0]:
        raise ArgumentError("chosen shape", tuple(chosen.shape), f"must be [{x.shape[0]}, top]")
    if weights.dtype not in WEIGHTS:
        allowed = f"must be {' or '.join(map(str, WEIGHTS))}"
        raise ArgumentError("weights dtype", weights.dtype, allowed)
    check_shape("weights", weights, tuple(chosen.shape))
    if add is not None and add.dtype != BF16:
        raise ArgumentError("add dtype", add.dtype, f"must be {BF16}")
    if add is not None:
        check_shape("add", add, tuple(x.shape))
