"""What this device can do at most, measured now: arithmetic by a big GEMM, memory by a big read."""

from __future__ import annotations

from dataclasses import dataclass

from .. import recipes
from ..ir.dtypes import E4M3, FP8
from ..problem import Problem
from ..runtime.torch_tensors import torch
from . import cases
from .data import Data
from .providers import torch_reference
from .timing import MARK_BYTES, interleave

SIDE = 8192
READ_BYTES = 4 << 30
REPEATS = 7


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """FLOP/s of torch's GEMM of SIDE cubed, of the problem's operands without scales; bytes/s of a sum over
    READ_BYTES."""

    flops: float
    bytes: float
    gemm: str


def measure(p: Problem, data: Data) -> Ceilings:
    """In bursts."""
    operand = E4M3 if p.a in FP8 else p.a
    plain = Problem(family=recipes.DENSE, a=operand, b=operand)
    provider = torch_reference(plain)
    gemm = provider.make(cases.make(plain, (SIDE,) * 3, data), False)
    numbers = torch().zeros(READ_BYTES // 4, device="cuda")
    found = interleave(
        {"gemm": gemm, "read": lambda: numbers.sum()}, REPEATS, flush_bytes=MARK_BYTES
    )
    return Ceilings(
        flops=2.0 * SIDE**3 / found["gemm"].median,
        bytes=READ_BYTES / found["read"].median,
        gemm=f"{provider.name} {SIDE}x{SIDE}x{SIDE}",
    )
