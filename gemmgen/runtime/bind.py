"""Operands in somebody's memory: what a launch's tensor maps and parameters then are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.expr import BEFORE, parameter, row_stride
from ..ir.groupings import GROUPINGS, in_turn
from ..verification.inputs import Operands
from ..verification.trial import Pitches, scale_blocks
from .tensor_map import Matrix

Bytes = npt.NDArray[np.uint8]

TABLES = tuple(p.name for g in GROUPINGS.values() for p in g.params if p.ctype == "const int*")
NAN_BYTE = 0xFF  # NaN in FP8, BF16, FP16 and FP32


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Tensors by the name a TmaMap gives them, scalars and pointers by parameter name."""

    matrices: dict[str, Matrix]
    values: dict[str, int | float]


def bind(
    operands: Operands,
    pitches: Pitches,
    out: int,
    place: Callable[[Bytes], int],
    scale_d: int = 0,
) -> Bound:
    """Embed each operand in a parent filled with NaN, `place` it (bytes [rows, pitch] -> address),
    and describe the launch that writes D at address `out`, and its scales at `scale_d`."""

    def matrix(rows: npt.NDArray[Any], pitch: int) -> Matrix:
        """[outer, inner], or [groups, outer, inner] with `pitches.gap` rows between two groups."""
        groups, (outer, inner) = rows.shape[:-2], rows.shape[-2:]
        high = outer + pitches.gap * len(groups)
        parent = np.full((*groups, high, pitch * rows.itemsize), NAN_BYTE, np.uint8)
        parent[..., :outer, : inner * rows.itemsize] = np.ascontiguousarray(rows).view(np.uint8)
        return Matrix(
            pointer=place(parent.reshape(-1, parent.shape[-1])),
            outer=outer,
            inner=inner,
            stride=pitch,
            groups=groups[0] if groups else 1,
            group_stride=high * pitch,
        )

    m, n, k = operands.shape
    a, b = (
        x.swapaxes(-1, -2) if turned else x
        for x, turned in zip((operands.a, operands.b), operands.mn_major, strict=True)
    )
    layout, groups = operands.layout, operands.d_groups
    in_turn = _packed(operands, place) if operands.packing == "flat" else {}
    high = m + pitches.gap * len(groups)
    matrices = {
        "a": in_turn.get("a") or matrix(a, pitches.a),
        "b": in_turn.get("b") or matrix(b, pitches.b),
        "d": Matrix(
            pointer=out,
            outer=m,
            inner=n // operands.fold,
            stride=pitches.d,
            groups=groups[0] if groups else 1,
            group_stride=high * pitches.d,
        ),
    }
    values: dict[str, int | float] = {"d": out, "d_stride": pitches.d}
    values |= {"shape_m": m, "shape_n": n, "shape_k": k}
    values |= {"d_stride_g": high * pitches.d, "groups": layout.groups}
    blocks = scale_blocks(operands) + pitches.gap * len(groups)
    values |= {"scale_d": scale_d, "scale_d_stride": pitches.scale_d}
    values["scale_d_stride_g"] = blocks * pitches.scale_d
    values |= {name: matrices[name].pointer for name in "ab"}
    if layout.table:
        table = place(np.array([layout.table], np.int32).view(np.uint8))
        values |= dict.fromkeys(TABLES, table)
    if operands.scale_a is not None and operands.scale_b is not None:
        matrices["scale_a"] = matrix(operands.scale_a.swapaxes(-1, -2), pitches.scale_a)
        if operands.rows_per_scale == 1:  # by tensor map, as A's
            matrices["scale_b"] = matrix(operands.scale_b.swapaxes(-1, -2), pitches.scale_b)
        scale_b = matrix(operands.scale_b, operands.scale_b.shape[-1])
        values |= {"scale_b": scale_b.pointer, "scale_b_stride_n": scale_b.stride}
        values |= {"scale_b_stride_k": 1, "scale_b_stride_g": scale_b.group_stride}
    for name, value in operands.arguments.items():
        if name == BEFORE.name:  # lies in D
            continue
        if isinstance(value, float):
            values[parameter(name)] = value
        elif value.dtype.kind == "u":  # the codes of a PerElement
            c = matrix(value, n + n % 2 + 2)
            values |= {parameter(name): c.pointer, row_stride(name): c.stride}
            values[f"{parameter(name)}_stride_g"] = c.group_stride
        else:
            values[parameter(name)] = matrix(value.reshape(1, -1), value.size).pointer
    return Bound(matrices=matrices, values=values)


def _packed(operands: Operands, place: Callable[[Bytes], int]) -> dict[str, Matrix]:
    """K-major operands whose groups' matrices follow each other. The map that the host encodes only
    says how large they are together."""
    found = {}
    spans = in_turn(operands.shape[2], operands.layout)
    sides = zip("ab", (operands.a, operands.b), operands.mn_major, strict=True)
    for name, x in ((name, x) for name, x, turned in sides if not turned):
        whole = np.concatenate([x[:, d.first : d.end].reshape(-1) for d in spans])
        parent = np.full(x.nbytes + 16, NAN_BYTE, np.uint8)
        parent[: whole.nbytes] = whole.view(np.uint8)
        rows, k = x.shape
        pieces = (
            -(-k * x.itemsize // 16) * 16
        )  # no group has such rows, but the driver wants a legal map
        stride = pieces // x.itemsize
        found[name] = Matrix(pointer=place(parent), outer=rows, inner=k, stride=stride)
    return found
