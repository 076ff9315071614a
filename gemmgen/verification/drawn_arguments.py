"""What an epilogue reads, drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codes import Codes, encode
from ..ir.expr import (
    Argument,
    DeviceScalar,
    PerColumn,
    PerElement,
    RowBound,
    Scalar,
    arguments,
)
from ..ir.row_sums import fold_rows
from ..problem import Problem
from .windows import drawn_bound

Values = npt.NDArray[np.float32]
Numbers = Callable[[tuple[int, ...]], Values]  # arguments of a shape


def drawn_arguments(
    problem: Problem, shape: tuple[int, int, int], numbers: Numbers
) -> dict[str, float | Values | Codes]:
    rows = shape[0] // fold_rows(problem.epilogue)
    found = arguments(problem.value)
    bounds: dict[str, Any] = {
        x.name: drawn_bound(x, rows, shape[1], numbers) for x in found if isinstance(x, RowBound)
    }
    others = {x.name: _argument(x, shape, numbers) for x in found if x.name not in bounds}
    return {x.name: (bounds | others)[x.name] for x in found}


def _argument(x: Argument, shape: tuple[int, int, int], numbers: Numbers) -> float | Values | Codes:
    if isinstance(x, PerElement):
        return encode(numbers(shape[:2]), x.dtype)
    if isinstance(x, Scalar | DeviceScalar):
        count = 1
    else:
        count = shape[1] if isinstance(x, PerColumn) else shape[0]
    values = numbers((count,))
    return float(values[0]) if isinstance(x, Scalar) else values
