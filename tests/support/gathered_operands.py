"""What a rank is handed of GEMMs that gather A, as arrays of codes as they lie in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmgen.ir.dtypes import F32, DType
from gemmgen.ir.expr import BEFORE, PerElement, arguments


@dataclass(frozen=True, kw_only=True, eq=False)
class Lines:
    """codes [lines, elements of each], or a vector. turned: it stands for the transposed matrix."""

    codes: Any
    dtype: DType = F32
    turned: bool = False


def rows(problem, x, rank, ranks):
    """By argument, this rank's rows of A, and their scales."""
    m = x.shape[0] // ranks
    mine = slice(rank * m, rank * m + m)
    found = {"a": Lines(codes=x.a[mine].T if x.mn_major[0] else x.a[mine], dtype=problem.a)}
    if x.scale_a is not None:
        found["scale_a"] = Lines(codes=x.scale_a[mine].T, turned=True)
    return found


def rest(problem, x):
    """By argument, B, its scales, and what the epilogue reads; a number as it is."""
    found = {"b": Lines(codes=x.b.T if x.mn_major[1] else x.b, dtype=problem.b)}
    if x.scale_b is not None:
        each = x.rows_per_scale == 1
        found["scale_b"] = Lines(codes=x.scale_b.T if each else x.scale_b, turned=each)
    matrices = {y.name: y.dtype for y in arguments(problem.epilogue) if isinstance(y, PerElement)}
    for name, value in x.arguments.items():
        if isinstance(value, float):
            found[name] = value
        elif name != BEFORE.name:
            found[name] = Lines(codes=np.asarray(value), dtype=matrices.get(name, F32))
    return found
