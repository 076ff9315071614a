"""The inputs of one GEMM on the GPU, and what each way of scaling should make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import DType
from ..ops import SCALE_BLOCK
from ..problem import Problem
from ..recipes import recipe
from ..runtime.torch_tensors import torch, torch_dtype
from .data import Data
from .shapes import Shape

MOST_COPIES = 256  # fewer than the calls that gemmgen.ops keeps


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """What every provider reads.

    a, b: as the problem's layout stores them. scale_a float32 [M, ceil(K/128)], contiguous along M;
    scale_b float32 [ceil(N/128), ceil(K/128)], of fp8_1d1d [N, ceil(K/128)], contiguous along N: drawn
    for every family, read by those with block scales. rows [M], columns [N]: scales of the others.
    """

    problem: Problem
    shape: tuple[int, int, int]
    a: Any
    b: Any
    scale_a: Any
    scale_b: Any
    rows: Any
    columns: Any

    @property
    def left(self) -> Any:
        """A as a view [M, K]."""
        return self.a.mT if self.problem.mn_major[0] else self.a

    @property
    def right(self) -> Any:
        """B as a view [K, N]."""
        return self.b if self.problem.mn_major[1] else self.b.mT

    def out(self, dtype: DType | None = None) -> Any:
        """A new [M, N] of the problem's output dtype, or of `dtype`."""
        m, n, _ = self.shape
        return torch().empty(m, n, dtype=torch_dtype(dtype or self.problem.d), device=self.a.device)


def make(p: Problem, shape: Shape, data: Data) -> Case:
    """Of a problem that `work.launched` takes; what it reads in an epilogue is among the scales."""
    m, n, k = shape
    a_turned, b_turned = p.mn_major
    blocks = -(-k // SCALE_BLOCK)
    vectors = recipe(p.family).scales_columns
    return Case(
        problem=p,
        shape=(m, n, k),
        a=data.operand(*((k, m) if a_turned else (m, k)), dtype=p.a, depth=k),
        b=data.operand(*((k, n) if b_turned else (n, k)), dtype=p.b, depth=k),
        scale_a=data.row_scales(m, blocks),
        scale_b=data.row_scales(n, blocks) if vectors else data.scales(-(-n // 128), blocks),
        rows=data.scales(m),
        columns=data.scales(n),
    )


def copies(bytes_: int, l2_bytes: int, providers: int) -> int:
    """How many sets of inputs of `bytes_` rotate: together more than twice the L2, and a multiple of
    `providers`, each of which starts where the others are not. Raises ArgumentError if they are too many."""
    least = 2 * l2_bytes // bytes_ + 1
    count = -(-least // providers) * providers
    if count > MOST_COPIES:
        allowed = (
            f"needs {count} copies of {bytes_} bytes, at most {MOST_COPIES}: use flush or warm"
        )
        raise ArgumentError("--l2", "rotate", allowed)
    return count


def _plain(c: Case) -> tuple[Any, Any]:
    return c.left.double(), c.right.double()


def _per_row(c: Case) -> tuple[Any, Any]:
    a, b = _plain(c)
    return a * c.rows[:, None], b * c.columns[None, :]


def _block_scaled(c: Case) -> tuple[Any, Any]:
    """Scales of A per row and 128 of K, of B per so many columns, too."""
    (a, b), (_, n, k) = _plain(c), c.shape
    scale_b = c.scale_b.double()
    if scale_b.shape[0] != n:
        scale_b = scale_b.repeat_interleave(SCALE_BLOCK, 0)[:n]
    wide_a, wide_b = (
        s.double().repeat_interleave(SCALE_BLOCK, 1)[:, :k] for s in (c.scale_a, scale_b)
    )
    return a * wide_a, b * wide_b.mT


# What is multiplied, by how it scales, float64 [M, K] and [K, N].
SCALINGS: dict[str, Callable[[Case], tuple[Any, Any]]] = {
    "plain": _plain,
    "rows": _per_row,
    "blocks": _block_scaled,
}


def scaling(p: Problem) -> str:
    """How gemmgen's call of `p` scales (INT8 with another output than INT32 is dequantised)."""
    if recipe(p.family).scaled:
        return "blocks"
    return "rows" if p.a.integer and not p.d.integer else "plain"


def product(c: Case, scaling: str) -> Any:
    """float64 [M, N]."""
    a, b = SCALINGS[scaling](c)
    return a @ b
