"""Where groups bring many uniform values, keep shared memory's address in a register."""

from __future__ import annotations

from dataclasses import replace

from ..ir.expr import ACC, InGroup
from ..ir.nodes import Evaluate, Kernel, StageTile, StoreValues
from ..ir.resources import ONE_GEMM
from ..ir.rewrite import statements
from ..target import Target


def keep_address(kernel: Kernel, target: Target) -> Kernel:
    """Left to itself, ptxas may derive the address anew in each K block where a launch has groups. An epilogue that
    computes may leave no register for it: one of them then spilled. Sets Kernel.keeps_address."""
    values = {
        s.value for s in statements(kernel) if isinstance(s, StageTile | StoreValues | Evaluate)
    }
    computes = any((v.value if isinstance(v, InGroup) else v) != ACC for v in values)
    if kernel.groups == ONE_GEMM or computes:
        return kernel
    return replace(kernel, keeps_address=True)
