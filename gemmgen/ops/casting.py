"""Casts over torch's CUDA tensors: which kernel, what it is given, where its results lie."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from ..casts import SIDE, VECTOR_BYTES, Cast, Per, row_threads, source
from ..errors import ArgumentError
from ..ir.counts import INT_LIMIT
from ..ir.dtypes import DTYPES, F32, FLOATS
from ..runtime import loaded_cast
from ..runtime.torch_tensors import current_stream, dtype_of, empty, torch, torch_dtype

loaded = partial(loaded_cast.loaded, source)  # of a kernel and a device


def quantised(x: Any, per: Per, dtype: str, power_of_two: bool) -> tuple[Any, Any]:
    """(q, scale) of x [..., rows, columns], already checked, on torch's current stream: for "columns" the scales are
    [..., rows, blocks], contiguous along the rows; for "row" [...]; for "block" [..., blocks, blocks].

    x is read where it lies if its rows are contiguous and all one stride apart, else from a contiguous copy.
    """
    x, pitch = in_rows(x)
    q = torch().empty(x.shape, dtype=torch_dtype(DTYPES[dtype]), device=x.device)
    scale = _scales(x, per)
    if scale.numel() >= INT_LIMIT:  # tiles are no more, and are counted in 32 bits
        allowed = f"must have at most {INT_LIMIT - 1} scales"
        raise ArgumentError("x shape", tuple(x.shape), allowed)
    if x.numel():
        cast = cast_of(x, pitch, per, dtype, power_of_two)
        *lead, group_rows, columns = x.shape
        rows = math.prod(lead) * group_rows
        sizes = {"rows": rows, "columns": columns, "group_rows": group_rows, "x_stride": pitch}
        at = {"x": x.data_ptr(), "q": q.data_ptr(), "scale": scale.data_ptr()}
        strides = {"scale_stride": scale.stride(-1)}
        tiles = cast.tiles(rows, columns, group_rows)
        loaded(cast, x.device.index).launch(
            {**sizes, **at, **strides}, tiles, current_stream(x.device)
        )
    return q, scale


def cast_of(x: Any, pitch: int, per: Per, dtype: str, power_of_two: bool) -> Cast:
    """The kernel for x, whose rows are `pitch` elements apart."""
    kind, columns = dtype_of("x", x, FLOATS), x.shape[-1]
    multiples = (x.data_ptr(), pitch * kind.bytes, columns * kind.bytes)
    aligned = all(n % VECTOR_BYTES == 0 for n in multiples)
    return Cast(
        x=kind,
        q=DTYPES[dtype],
        per=per,
        power_of_two=power_of_two,
        aligned=aligned,
        row_threads=row_threads(kind, columns, aligned) if per == "row" else None,
    )


def in_rows(x: Any) -> tuple[Any, int]:
    """x, or a contiguous copy where `row_pitch` is None, and its `row_pitch`."""
    pitch = row_pitch(x)
    return (x.contiguous(), x.shape[-1]) if pitch is None else (x, pitch)


def row_pitch(x: Any) -> int | None:
    """Elements from each row of x [..., rows, columns] to the next, if rows are contiguous and all one stride
    apart, through all groups, and that is what a kernel's integer holds; else None."""
    *sides, columns = x.shape
    *strides, along = x.stride()
    steps = [(n, stride) for n, stride in zip(sides, strides, strict=True) if n != 1]
    pitch: int = steps[-1][1] if steps else columns
    step, even = pitch, columns <= 1 or along == 1
    for n, stride in reversed(steps):
        even, step = even and stride == step, step * n
    return pitch if even and pitch < INT_LIMIT else None


def _scales(x: Any, per: Per) -> Any:
    *lead, rows, columns = x.shape
    high, wide = -(-rows // SIDE), -(-columns // SIDE)
    if per == "columns":
        return empty((*lead, wide, rows), F32, x.device).mT
    shape = (*lead, rows) if per == "row" else (*lead, high, wide)
    return torch().empty(shape, dtype=torch().float32, device=x.device)
