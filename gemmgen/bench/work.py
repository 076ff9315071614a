"""What is measured of a problem: the launch that a function of gemmgen.ops makes, its products and bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ir.expr import (
    ACC,
    Argument,
    DeviceScalar,
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
    tensors for one FP8 GEMM, of rows and columns for several and for INT8. What else it has for an epilogue is of
    the scaled product."""
    if p.d.integer or p.a.bytes > 1 or recipe(p.family).scaled:
        return p
    row: type[Argument] = DeviceScalar
    column: type[Argument] = DeviceScalar
    if p.a.integer or p.grouping != "none":
        row, column = PerRow, PerColumn
    scales = ("scale_a", "scale_b")
    if any(x.name in scales for x in arguments(p.epilogue)):
        return p
    scaled = ACC * row(scales[0]) * column(scales[1])
    return replace(p, epilogue=of(p.epilogue, scaled))


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
