"""Operands in somebody's memory: what a launch's tensor maps and parameters then are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.argument_names import group_stride, parameter, row_stride
from ..ir.expr import BEFORE
from ..ir.groupings import GROUPINGS, in_turn
from ..ir.indices import ROWS, TOP
from ..ir.pages import COUNT, PAGES, PITCH
from ..ir.row_sums import ROOM
from ..ir.squares import SQUARES
from ..verification.indexed import stored_a
from ..verification.inputs import Operands
from ..verification.paged import in_pages, stored_b
from ..verification.trial import Pitches, scale_blocks
from .tensor_map import Matrix, lying

Bytes = npt.NDArray[np.uint8]
Values = dict[str, int | float]
Embed = Callable[[npt.NDArray[Any], int], Matrix]

TABLES = tuple(p.name for g in GROUPINGS.values() for p in g.params if p.ctype == "const int*")
NAN_BYTE = 0xFF  # NaN in FP8, BF16, FP16 and FP32


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Tensors by the name a TmaMap gives them, scalars and pointers by parameter name."""

    matrices: dict[str, Matrix]
    values: Values


def bind(
    operands: Operands,
    pitches: Pitches,
    out: int,
    place: Callable[[Bytes], int],
    beside: int = 0,
) -> Bound:
    """Embed each operand in a parent filled with NaN, `place` it (bytes [rows, pitch] -> address),
    and describe the launch that writes D at address `out`, and its scales, or its rows' sums of squares, at `beside`."""

    def embed(rows: npt.NDArray[Any], pitch: int) -> Matrix:
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
    whole = _packed(operands, place) if operands.packing == "flat" else {}
    pitch = {"a": pitches.a, "b": pitches.b}
    stored = (
        x.swapaxes(-1, -2) if turned else x
        for x, turned in zip(
            (stored_a(operands), stored_b(operands)), operands.mn_major, strict=True
        )
    )
    matrices = {
        name: whole.get(name) or embed(x, pitch[name]) for name, x in zip("ab", stored, strict=True)
    }
    if operands.blocks is not None:
        matrices["b"] = _blocks(operands.blocks, embed)
    layout = operands.layout
    values: Values = {"shape_m": m, "shape_n": n, "shape_k": k, "groups": layout.groups}
    values |= lying(matrices)
    if layout.table:
        table = place(np.array([layout.table], np.int32).view(np.uint8))
        values |= dict.fromkeys(TABLES, table)
    if operands.indices is not None:
        indices = place(operands.indices.reshape(1, -1).view(np.uint8))
        values |= {ROWS: indices, TOP: operands.top}
    if operands.pages is not None:
        numbers = embed(operands.pages, operands.pages.shape[1] + 1)
        values |= {PAGES: numbers.pointer, PITCH: numbers.stride, COUNT: matrices["b"].groups}
    output = _output(operands, pitches, out, beside)
    scales = _scales(operands, pitches, embed)
    return Bound(
        matrices=matrices | output.matrices | scales.matrices,
        values=values | output.values | scales.values | _arguments(operands, embed),
    )


def _blocks(blocks: Bytes, embed: Embed) -> Matrix:
    """Packed weights: a row of blocks, as bytes, for each 64 rows."""
    rows = blocks.reshape(*blocks.shape[:-2], -1)
    return embed(rows, rows.shape[-1])


def _output(operands: Operands, pitches: Pitches, out: int, beside: int) -> Bound:
    groups = operands.d_groups
    high = operands.d_m + pitches.gap * len(groups)
    blocks = scale_blocks(operands) + pitches.gap * len(groups)
    d = Matrix(
        pointer=out,
        outer=operands.d_m,
        inner=operands.d_columns,
        stride=pitches.d,
        groups=groups[0] if groups else 1,
        group_stride=high * pitches.d,
    )
    values: Values = {"d": out, "d_stride": d.stride, "d_stride_g": d.group_stride}
    values |= {ROOM: operands.d_columns}
    of_group = blocks * pitches.scale_d
    values |= {"scale_d": beside, "scale_d_stride": pitches.scale_d, "scale_d_stride_g": of_group}
    values |= {SQUARES: beside, f"{SQUARES}_stride": 1, f"{SQUARES}_stride_g": of_group}
    return Bound(matrices={"d": d}, values=values)


def _scales(operands: Operands, pitches: Pitches, embed: Embed) -> Bound:
    """A's by tensor map, along M, and by pointer, row by row; B's, if any, by pointer, and by tensor map too where each of its rows
    has some."""
    if operands.scale_a is None:
        return Bound(matrices={}, values={})
    matrices = {"scale_a": embed(operands.scale_a.swapaxes(-1, -2), pitches.scale_a)}
    a = embed(operands.scale_a, operands.scale_a.shape[-1])
    values: Values = {"scale_a": a.pointer, "scale_a_stride_m": a.stride, "scale_a_stride_k": 1}
    values |= {"scale_a_stride_g": a.group_stride}
    if operands.scale_b is None:
        return Bound(matrices=matrices, values=values)
    if operands.rows_per_scale == 1:
        matrices["scale_b"] = embed(operands.scale_b.swapaxes(-1, -2), pitches.scale_b)
    b = embed(operands.scale_b, operands.scale_b.shape[-1])
    values |= {"scale_b": b.pointer, "scale_b_stride_n": b.stride, "scale_b_stride_k": 1}
    values |= {"scale_b_stride_g": b.group_stride}
    return Bound(matrices=matrices, values=values)


def _arguments(operands: Operands, embed: Embed) -> Values:
    """The epilogue's; what D held before lies in D."""
    n, values = operands.shape[1], Values()
    for name, value in operands.arguments.items():
        if name == BEFORE.name:
            continue
        if isinstance(value, float):
            values[parameter(name)] = value
        elif value.dtype.kind == "u":  # the codes of a PerElement
            c = embed(value, n + n % 2 + 2)
            values |= {parameter(name): c.pointer, row_stride(name): c.stride}
            values[group_stride(name)] = c.group_stride
        elif name in operands.in_pages:
            x = embed(in_pages(operands, value), operands.page_rows + 1)
            values |= {parameter(name): x.pointer, group_stride(name): x.stride}
        else:
            values[parameter(name)] = embed(value.reshape(1, -1), value.size).pointer
    return values


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
        # No group has such rows, but the driver wants a legal map.
        stride = -(-k * x.itemsize // 16) * 16 // x.itemsize
        found[name] = Matrix(pointer=place(parent), outer=rows, inner=k, stride=stride)
    return found
