"""What is measured of a problem: the launch that a function of gemmgen.ops makes, its products and bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import UnsupportedProblem
from ..ir.dtypes import FP8
from ..ir.expr import ACC, Argument, DeviceScalar, PerColumn, PerRow
from ..ir.groupings import GROUPINGS
from ..problem import Problem
from .shapes import Shape, depths_of, rows_of

VERIFIED_ROWS = 1024  # of A, or of each of its groups
VERIFIED_DEPTHS = 2  # groups whose K is verified together, where groups split it

BY_ROWS = {
    ("fp8_block", "fp8"),
    ("fp8", "fp8"),
    ("dense", "fp8"),
    ("dense", "int8"),
    ("dense", "16-bit"),
}
BY_DEPTHS = {("fp8_1d1d", "fp8"), ("dense", "16-bit")}
MEASURED = {  # by grouping: families and kinds of operands
    "none": BY_ROWS | BY_DEPTHS | {("fp8_block", "int8")},
    "k_columns": BY_DEPTHS,
    "k_flat": {("fp8_1d1d", "fp8")},
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """flops: two per product. inputs: bytes of A and B. bytes: of A, B and D, each read once, written once."""

    flops: float
    inputs: int
    bytes: int


def launched(p: Problem) -> Problem:
    """`p` as it is measured and verified: times the scales that its function is given, of tensors for one FP8
    GEMM, of rows and columns for several and for INT8. Raises UnsupportedProblem for what is not measured."""
    kind = _kind(p)
    measured = MEASURED.get(p.grouping, BY_ROWS)
    layouts = p.layout == "nt" or p.grouping == "none" or GROUPINGS[p.grouping].depths
    if (p.family, kind) not in measured or not layouts:
        what = f"{p.family} with {p.a.name}, layout {p.layout}, grouping {p.grouping}"
        raise UnsupportedProblem(f"no benchmark of {what}")
    if p.epilogue != ACC:
        raise UnsupportedProblem("no benchmark of epilogues")
    if p.accumulate and ((p.family, kind) not in BY_DEPTHS or measured == BY_ROWS):
        raise UnsupportedProblem(f"no benchmark of {p.family} with {p.a.name} that accumulates")
    if p.d.integer or kind == "16-bit" or p.family not in ("fp8", "dense"):
        return p
    row: type[Argument] = DeviceScalar
    column: type[Argument] = DeviceScalar
    if kind == "int8" or p.grouping != "none":
        row, column = PerRow, PerColumn
    return replace(p, epilogue=ACC * row("scale_a") * column("scale_b"))


def _kind(p: Problem) -> str:
    if p.a.integer:
        return "int8"
    return "fp8" if p.a in FP8 else "16-bit"


def work(p: Problem, shape: Shape) -> Work:
    """Of one launch at (M, N, K), or with groups (G, M, N, K), whose rows or K are those that there are."""
    groups, (m, n, k) = shape[0] if len(shape) > 3 else 1, shape[-3:]
    d = p.d.bytes * (2 if p.accumulate else 1)
    if GROUPINGS[p.grouping].depths:
        k = sum(depths_of(groups, k))
        inputs = k * (m * p.a.bytes + n * p.b.bytes)
        return Work(flops=2.0 * m * n * k, inputs=inputs, bytes=inputs + groups * m * n * d)
    rows = m if p.grouping == "none" else sum(rows_of(p, groups, m))
    inputs = k * (rows * p.a.bytes + groups * n * p.b.bytes)
    return Work(flops=2.0 * rows * n * k, inputs=inputs, bytes=inputs + rows * n * d)


def verified(p: Problem, shape: Shape) -> tuple[int, int, int]:
    """What is verified before `shape` is timed, some groups of it: the host draws all operands and compares
    all of D."""
    m, n, k = shape[-3:]
    if p.grouping == "none":
        return m, n, k
    if GROUPINGS[p.grouping].depths:
        k = sum(depths_of(VERIFIED_DEPTHS, k))
    return min(m, VERIFIED_ROWS), n, k
