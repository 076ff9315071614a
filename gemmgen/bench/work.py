"""What is measured of a problem: the launch that a function of gemmgen.ops makes, its products and bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ir.expr import (
    ACC,
    Argument,
    DeviceScalar,
    Expr,
    PerColumn,
    PerElement,
    PerRow,
    arguments,
    fold,
    of,
)
from ..ir.groupings import GROUPINGS
from ..ir.packed import COLUMNS, ROWS
from ..problem import Problem
from ..recipes import recipe
from .shapes import Shape, depths_of, rows_of

VERIFIED_ROWS = 1024  # of A, or of each of its groups
VERIFIED_DEPTHS = 2  # groups whose K is verified together, where groups split it


@dataclass(frozen=True, kw_only=True)
class Work:
    """flops: two per product. inputs: bytes of A and B. bytes: of A, B, D and the matrices that an epilogue
    reads, each read once, written once."""

    flops: float
    inputs: int
    bytes: int


def launched(p: Problem) -> Problem:
    """`p` as it is measured and verified: times the scales that gemmgen's functions of its operands are given, of
    tensors for one FP8 GEMM, of rows and columns for several, for INT8 and for packed weights, which by 16 bits, and where A has scales
    of its own, have the factors of columns alone, if any. What else it has for an epilogue is of the scaled product."""
    names = ("scale_a", "scale_b")
    if p.d.integer or any(x.name in names for x in arguments(p.epilogue)):
        return p
    scaled: Expr = ACC
    for name, scale in zip(names, _scales(p), strict=True):
        scaled = scaled if scale is None else scaled * scale(name)
    return p if scaled == ACC else replace(p, epilogue=of(p.epilogue, scaled))


def _scales(p: Problem) -> tuple[type[Argument] | None, type[Argument] | None]:
    """What A's sums and B's are scaled by."""
    if p.form and (p.a.bytes > 1 or recipe(p.family).scaled):
        return None, PerColumn if p.form.factors else None
    if p.a.bytes > 1 or recipe(p.family).scaled:
        return None, None
    if p.a.integer or p.form or p.grouping != "none":
        return PerRow, PerColumn
    return DeviceScalar, DeviceScalar


def work(p: Problem, shape: Shape) -> Work:
    """Of one launch at (M, N, K), or with groups (G, M, N, K), whose rows or K are those that there are."""
    groups, (m, n, k) = shape[0] if len(shape) > 3 else 1, shape[-3:]
    d = p.d.bytes * (2 if p.accumulate else 1) / fold(p.epilogue)
    d += sum(x.dtype.bytes for x in arguments(p.epilogue) if isinstance(x, PerElement))
    if GROUPINGS[p.grouping].depths:
        k = sum(depths_of(groups, k))
        inputs = k * (m * p.a.bytes + n * p.b.bytes)
        return Work(flops=2.0 * m * n * k, inputs=inputs, bytes=inputs + int(groups * m * n * d))
    rows = m if p.grouping == "none" else sum(rows_of(p, groups, m))
    inputs = k * rows * p.a.bytes + groups * weights_bytes(p, n, k)
    results = m if GROUPINGS[p.grouping].summed else rows
    return Work(flops=2.0 * rows * n * k, inputs=inputs, bytes=inputs + int(results * n * d))


def weights_bytes(p: Problem, n: int, k: int) -> int:
    """Of B [N, K], as it lies in memory."""
    if p.form:
        return -(-n // ROWS) * -(-k // COLUMNS) * p.form.block_bytes
    return n * k * p.b.bytes


def verified(p: Problem, shape: Shape) -> tuple[int, int, int]:
    """What is verified before `shape` is timed, some groups of it: the host draws all operands and compares
    all of D."""
    m, n, k = shape[-3:]
    if p.grouping == "none":
        return m, n, k
    if GROUPINGS[p.grouping].depths:
        k = sum(depths_of(VERIFIED_DEPTHS, k))
    return min(m, VERIFIED_ROWS), n, k
