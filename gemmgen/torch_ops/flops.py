"""How many floating-point operations torch's counter (`torch.utils.flop_counter`) counts of an operator: 2 for each product of a sum.

Of groups whose rows the device counts, rows are as many as there is room for, and windows have all keys: the host does not
know better.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from math import prod
from typing import Any

from ..ir.collectives import ALL_GATHER
from ..ir.groupings import GROUPINGS
from ..ir.packed import ROWS
from ..ops import SCALE_BLOCK
from ..problem import Problem
from ..runtime.torch_tensors import torch
from . import logits, paged_logits, prenorm, top_keys
from .all_reduces import COLLECTIVES
from .operators import OPERATORS, Operator

Shape = tuple[int, ...]


@cache
def register_flops(namespace: str) -> None:
    """Once per process, of the operators in `namespace`."""
    operators = getattr(torch().ops, namespace)
    formula = import_module("torch.utils.flop_counter").register_flop_formula
    for op in OPERATORS:
        if op.operands:
            formula(getattr(operators, op.name))(_of_gemm(op))
    for collective in COLLECTIVES if torch().distributed.is_available() else ():
        count = _of_gathered if collective.collective == ALL_GATHER else _of_gemm
        formula(getattr(operators, collective.name))(count(collective))
    formula(operators.moe)(of_moe)
    formula(operators.fp8_mqa_logits)(logits.operations)
    formula(operators.fp8_mqa_top_k)(top_keys.operations)
    formula(operators.fp8_paged_mqa_top_k)(top_keys.operations_in_pages)
    formula(operators.fp8_paged_mqa_logits)(paged_logits.operations)
    formula(operators.prenorm_gemm)(prenorm.operations)


def _of_gemm(op: Operator) -> Callable[..., int]:
    """Of shapes in the place of tensors."""

    def count(*args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        given = op.bind(args, kwargs)
        if given.get("packing") == "flat":
            (m, blocks), (n, _) = given["scale_a"], given["scale_b"]
            return int(2 * m * n * blocks * SCALE_BLOCK)
        m, n, k = _sides(given)
        m = m if given.get("rows") is None else given["rows"][0]
        groups = given["a"][0] if GROUPINGS[op.grouping].rows else 1
        return int(2 * groups * m * n * k)

    return count


def _of_gathered(op: Operator) -> Callable[..., int]:
    """Rows are those of all ranks, which the result has."""

    def count(*args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        _, n, k = _sides(op.bind(args, kwargs))
        whole = out_shape[0] if isinstance(out_shape[0], tuple) else out_shape
        return int(2 * whole[0] * n * k)

    return count


def _sides(given: dict[str, Any]) -> tuple[int, int, int]:
    """M, N and K of one GEMM; of packed weights N is `columns`, or all rows of their blocks."""
    layout = given.get("layout", Problem.layout)
    rows, columns = given["a"][-2:], given["b"][-2:]
    m, k = rows[::-1] if layout[0] == "t" else rows
    if "weights" in given:
        whole = ROWS * given["b"][-3]
        return m, whole if given["columns"] is None else given["columns"], k
    return m, columns[1] if layout[1] == "n" else columns[0], k


def of_moe(x: Shape, w1: Shape, w2: Shape, chosen: Shape, *rest: Any, **kwargs: Any) -> int:
    """Of two GEMMs of every choice, as if each were one of these experts. Of packed weights w1 has rows of blocks."""
    hidden = x[-1]
    both = ROWS * w1[1] if kwargs.get("packed") else w1[1]
    return int(2 * prod(chosen) * hidden * (both + both // 2))
