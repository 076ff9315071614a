"""Packed weights as a GEMM's B: packed blocks, whose sides are not the matrix's."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..ir.counts import check_side
from ..ir.dtypes import S8
from ..ir.expr import fold
from ..ir.groupings import GROUPINGS
from ..ir.packed import COLUMNS, ROWS
from ..problem import Problem
from ..runtime.torch_tensors import check_tensor, torch
from .epilogue import Shape


def sides(p: Problem, a: Any, b: Any, columns: int | None) -> Shape:
    """(M, N, K) of a [M, K] or [G, M, K] and packed b [R, C, bytes] or [G, R, C, bytes]. columns: N, if it is not 64 R. Raises ArgumentError."""
    g, form = GROUPINGS[p.grouping], p.form
    assert form is not None
    a_shape = check_tensor("a", a, p.a, (*(None,) * g.rows, None, None), contiguous=True)
    m, k = a_shape[-2:]
    across = -(-k // COLUMNS)
    wanted = (*(None,) * g.columns, None, across, form.block_bytes)
    _check_blocks(b, wanted, a.device)
    if g.rows and a.shape[0] != b.shape[0]:
        raise ArgumentError("b groups", b.shape[0], f"must be {a.shape[0]}, as of a")
    rows = ROWS * b.shape[-3]
    n = rows if columns is None else columns
    if isinstance(n, bool) or not isinstance(n, int) or not rows - ROWS < n <= rows:
        raise ArgumentError("columns", columns, f"must be {rows - ROWS + 1} to {rows}, or None")
    for name, side in (("columns", n), ("a columns", k), *(("a rows", m),) * (m > 0)):
        check_side(name, side)
    if n % fold(p.epilogue):
        allowed = "must be even: the epilogue pairs columns of the product"
        raise ArgumentError("columns", n, allowed)
    return m, n, k


def check_none(p: Problem, columns: int | None) -> None:
    """Raise ArgumentError for columns of a b that has its own."""
    if columns is not None:
        allowed = f"is of packed weights, which {p.family} has not: N is a side of b"
        raise ArgumentError("columns", columns, allowed)


def rows_of(b: Any) -> Any:
    """Blocks as rows of bytes, [R, C * bytes], of each group."""
    return b.reshape(*b.shape[:-2], b.shape[-2] * b.shape[-1]).view(torch().int8)


def _check_blocks(b: Any, wanted: tuple[int | None, ...], device: Any) -> None:
    """Raise ArgumentError unless they are bytes of that shape, one after the other."""
    if not isinstance(b, torch().Tensor):
        raise ArgumentError("b", type(b).__name__, "must be a torch tensor of packed weights")
    if b.dtype != torch().uint8:
        raise ArgumentError("b dtype", b.dtype, "must be torch.uint8")
    check_tensor("b", b.view(torch().int8), S8, wanted, device, contiguous=True)
    if not b.is_contiguous():
        raise ArgumentError("b", tuple(b.stride()), "must be contiguous")
