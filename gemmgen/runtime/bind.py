"""Operands in somebody's memory: what a launch's tensor maps and parameters then are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.expr import parameter, row_stride
from ..verification.inputs import Operands
from ..verification.trial import Pitches
from .tensor_map import Matrix

Bytes = npt.NDArray[np.uint8]

NAN_BYTE = 0xFF  # NaN in FP8, BF16, FP16 and FP32


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Tensors by the name a TmaMap gives them, scalars and pointers by parameter name."""

    matrices: dict[str, Matrix]
    values: dict[str, int | float]


def bind(operands: Operands, pitches: Pitches, out: int, place: Callable[[Bytes], int]) -> Bound:
    """Embed each operand in a parent filled with NaN, `place` it (bytes [rows, pitch] -> address),
    and describe the launch that writes D at address `out`."""

    def matrix(rows: npt.NDArray[Any], pitch: int) -> Matrix:
        parent = np.full((rows.shape[0], pitch * rows.itemsize), NAN_BYTE, np.uint8)
        parent[:, : rows.shape[1] * rows.itemsize] = np.ascontiguousarray(rows).view(np.uint8)
        outer, inner = rows.shape
        return Matrix(pointer=place(parent), outer=outer, inner=inner, stride=pitch)

    m, n, k = operands.shape
    matrices = {
        "a": matrix(operands.a, pitches.a),
        "b": matrix(operands.b, pitches.b),
        "d": Matrix(pointer=out, outer=m, inner=n, stride=pitches.d),
    }
    values: dict[str, int | float] = {"d": out, "d_stride": pitches.d}
    values |= {"shape_m": m, "shape_n": n, "shape_k": k}
    if operands.scale_a is not None and operands.scale_b is not None:
        matrices["scale_a"] = matrix(operands.scale_a.T, pitches.scale_a)
        scale_b = matrix(operands.scale_b, operands.scale_b.shape[1])
        values |= {"scale_b": scale_b.pointer, "scale_b_stride_n": scale_b.stride}
        values["scale_b_stride_k"] = 1
    for name, value in operands.arguments.items():
        if isinstance(value, float):
            values[parameter(name)] = value
        elif value.ndim == 2:
            c = matrix(value, n + n % 2 + 2)
            values |= {parameter(name): c.pointer, row_stride(name): c.stride}
        else:
            values[parameter(name)] = matrix(value[None], value.size).pointer
    return Bound(matrices=matrices, values=values)
