"""The inputs of one GEMM on the GPU, and what each way of scaling should make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from ..ir.dtypes import DType
from ..ir.expr import (
    ACC,
    Argument,
    BinOp,
    DeviceScalar,
    Expr,
    PerColumn,
    PerElement,
    PerRow,
    fold,
)
from ..ir.expr import arguments as read
from ..ir.groupings import GROUPINGS
from ..problem import Problem
from ..recipes import SCALE_BLOCK, recipe
from ..runtime.torch_engine import TorchEngine
from ..runtime.torch_tensors import empty, torch, torch_dtype
from ..verification.epilogue import evaluate
from . import coded
from .data import Data
from .shapes import Shape

MOST_COPIES = 256  # fewer than the calls that gemmgen.ops keeps


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """What every provider reads.

    a, b: as the problem's layout stores them; of packed weights b is blocks. wide: b in numbers, itself unless it is packed. scale_a float32 [M, ceil(K/128)], contiguous along M;
    scale_b float32 [ceil(N/128), ceil(K/128)], where columns have their own [N, ceil(K/128)], contiguous along N:
    drawn for every family, read by those with block scales; of packed weights those of sums, which lie in the blocks, or None. rows [M], columns [N]: scales of the others. given:
    what the problem's epilogue reads, by name, with `rows` and `columns` for scales of them.
    """

    problem: Problem
    shape: tuple[int, int, int]
    a: Any
    b: Any
    wide: Any
    scale_a: Any
    scale_b: Any
    rows: Any
    columns: Any
    given: dict[str, Any]

    @property
    def left(self) -> Any:
        """A as a view [M, K]."""
        return self.a.mT if self.problem.mn_major[0] else self.a

    @property
    def right(self) -> Any:
        """B as a view [K, N]."""
        return self.wide if self.problem.mn_major[1] else self.wide.mT

    def out(self, dtype: DType | None = None) -> Any:
        """A new [M, N] of the problem's output dtype, or of `dtype`."""
        m, n, _ = self.shape
        return torch().empty(m, n, dtype=torch_dtype(dtype or self.problem.d), device=self.a.device)


def make(p: Problem, shape: Shape, data: Data) -> Case:
    """Of a problem that `work.launched` returns."""
    m, n, k = shape
    scale_a, scale_b = _scales(p, (m, k), (n, k), data)
    rows, columns = data.scales(m), data.scales(n)
    a, b, wide = drawn(p, (m, n, k), data)
    scale_b = coded.sum_scales(p.form, b, (n, k)) if p.form else scale_b
    given = arguments(p, (m, n), 1, data)
    scales = {PerRow("scale_a"): rows, PerColumn("scale_b"): columns}
    given |= {x.name: scales[x] for x in read(p.epilogue) if x in scales}
    return Case(
        problem=p,
        shape=(m, n, k),
        a=a,
        b=b,
        wide=wide,
        scale_a=scale_a,
        scale_b=scale_b,
        rows=rows,
        columns=columns,
        given=given,
    )


def drawn(
    p: Problem, shape: tuple[int, int, int], data: Data, *lead: tuple[int, ...]
) -> tuple[Any, Any, Any]:
    """A and B as the problem stores them, and B in numbers. lead: their group dimensions."""
    (m, n, k), (a_lead, b_lead) = shape, lead or ((), ())
    a_turned, b_turned = p.mn_major
    a = (*a_lead, *((k, m) if a_turned else (m, k)))
    b = (*b_lead, *((k, n) if b_turned else (n, k)))
    left = data.operand(*a, dtype=p.a, depth=k)
    if p.form:
        packed = coded.drawn(p.form, b, data)
        return left, packed.blocks, packed.numbers()
    right = data.operand(*b, dtype=p.b, depth=k)
    return left, right, right


def columns(p: Problem, n: int) -> dict[str, int]:
    """What `ops.multiply` is told of B's sides beside B."""
    return {"columns": n} if p.form else {}


def arguments(p: Problem, sides: tuple[int, int], groups: int, data: Data) -> dict[str, Any]:
    """What the epilogue reads, as `gemmgen.ops` takes it: scales of tensors are 1, numbers 1, 2, ... in order."""
    (m, n), g = sides, GROUPINGS[p.grouping]
    results, vectors = ((groups,) * x for x in (g.outputs, g.vectors))
    found: dict[str, Any] = {}
    for x in read(p.epilogue):
        match x:
            case PerRow():
                found[x.name] = data.scales(*results, m)
            case PerColumn():
                found[x.name] = data.scales(*vectors, n)
            case PerElement():
                found[x.name] = data.operand(*results, m, n, dtype=x.dtype, depth=1)
            case DeviceScalar():
                found[x.name] = torch().ones((), device=data.device)
            case _:
                found[x.name] = 1.0 + sum(isinstance(y, float) for y in found.values())
    return found


def block_scales(
    p: Problem, a: tuple[int, ...], b: tuple[int, ...], data: Data, fresh: bool
) -> dict[str, Any]:
    """Of operands [..., M, K] and [..., N, K], as `ops.multiply` takes them: fresh, as quantisers leave them."""
    return laid(*_scales(p, a, b, data), fresh) if recipe(p.family).scaled else {}


def _scales(p: Problem, a: tuple[int, ...], b: tuple[int, ...], data: Data) -> tuple[Any, Any]:
    """Of A's rows and of B's blocks, or of its rows where they have their own, or none; each in place as kernels read it."""
    blocks, sums = -(-a[-1] // SCALE_BLOCK), recipe(p.family)
    scale_a = data.row_scales(*a[:-1], blocks)
    if sums.scaled and not sums.scales_b:
        return scale_a, None
    if sums.scales_columns:
        return scale_a, data.row_scales(*b[:-1], blocks)
    return scale_a, data.scales(*b[:-2], -(-b[-2] // SCALE_BLOCK), blocks)


def output(p: Problem, rows: tuple[int, ...], n: int, device: Any) -> Any:
    """A new D [*rows, N], or half of N where columns are paired, with its gaps, whose rows begin at multiples of 16 bytes; 0, if
    something is added to it."""
    out = empty((*rows, p.gaps.columns(n // fold(p.epilogue))), p.d, device)
    return out.zero_() if p.accumulate else out


def laid(scale_a: Any, scale_b: Any, fresh: bool) -> dict[str, Any]:
    """As they are read in place; or row by row."""
    found = {"scale_a": scale_a, "scale_b": scale_b}
    scales = {x: s for x, s in found.items() if s is not None}
    if not fresh:
        return {**scales, "scale_layout": "mn"}
    return {**{x: s.contiguous() for x, s in scales.items()}, "scale_layout": "row"}


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
    ones = torch().ones(n, -(-k // SCALE_BLOCK), device=c.a.device)
    scale_b = (ones if c.scale_b is None else c.scale_b).double()
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
    """How gemmgen's call of `p` scales what is multiplied; the rest is its epilogue's."""
    return "blocks" if recipe(p.family).scaled else "plain"


def product(c: Case, scaling: str) -> Any:
    """float64 [M, N]."""
    a, b = SCALINGS[scaling](c)
    return a @ b


def finished(c: Case, product: Any) -> Any:
    """The problem's epilogue of `product`, float64 [M, N]."""
    m, n, _ = c.shape
    shapes = {PerRow: (m, 1), PerColumn: (1, n), PerElement: (m, n)}
    args = {
        x.name: torch()
        .as_tensor(c.given[x.name], device=product.device)
        .double()
        .reshape(shapes.get(type(x), (1, 1)))
        for x in read(c.problem.epilogue)
    }
    return evaluate(c.problem.epilogue, product, args, TorchEngine(device=product.device))


def exactly(e: Expr) -> bool:
    """Whether `e` only scales the sum: by powers of two it stays exact."""
    match e:
        case BinOp("*", lhs, Argument()):
            return exactly(lhs)
    return e == ACC
